// The programs of a backward whose gradients are not all there, or not all wanted.
//
// Autograd gives a compiled backward no gradient for results that the loss does not use, and asks
// for some of its gradients only where `torch.autograd.grad` names some inputs. Each such set gets
// a program of its own when it first comes (passes/backward_part.h): less is computed, less of what
// was saved is read, and what eager leaves undefined makes no NaN. Costs a compilation a set, of
// which there are few in a training; beyond kMostForms, and where one cannot be compiled, eager's
// own backward takes over. Safe from many threads.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "trace/compiled_function.h"

namespace ingot::trace {

class PartialBackwards {
  public:
    static constexpr std::size_t kMostForms = 8;

    struct Form {
        std::unique_ptr<CompiledFunction> program;
        std::vector<std::int32_t> inputs;  // of the whole backward's, in order
    };
    /// `whole`, which must outlive it, has the saved values, `saved` of them, and then the tangents
    /// as inputs. `numbers`: the symbols whose values its calls are given.
    PartialBackwards(const CompiledFunction& whole, std::size_t saved, std::vector<Expr> numbers,
                     std::function<std::int64_t(Expr)> hint, c10::Device device,
                     std::shared_ptr<const runtime::Compiler> compiler,
                     runtime::CompileOptions options);

    /// Its programs work in `arena`, by turns with the whole one. Before the first `form`.
    void share_arena(std::shared_ptr<runtime::SharedArena> arena) { arena_ = std::move(arena); }

    /// On a GPU: its CUDA graphs read inputs as the whole one's do, by input, and take turns with
    /// them. They only read what is saved in a room (graph_memory.h). Likewise.
    void share_graphs(std::vector<CompiledFunction::Reading> readings,
                      std::shared_ptr<GraphMemory> memory) {
        readings_ = std::move(readings);
        graph_memory_ = std::move(memory);
    }

    /// The program for these tangents and results; null: there is none.
    std::shared_ptr<const Form> form(const std::vector<bool>& defined,
                                     const std::vector<bool>& wanted);

  private:
    std::shared_ptr<const Form> make(const std::vector<bool>& defined,
                                     const std::vector<bool>& wanted) const;

    const CompiledFunction& whole_;
    std::size_t saved_;
    std::vector<Expr> numbers_;
    std::function<std::int64_t(Expr)> hint_;
    c10::Device device_;
    std::shared_ptr<const runtime::Compiler> compiler_;
    runtime::CompileOptions options_;
    std::shared_ptr<runtime::SharedArena> arena_;
    std::vector<CompiledFunction::Reading> readings_;
    std::shared_ptr<GraphMemory> graph_memory_;
    std::mutex mutex_;
    std::map<std::pair<std::vector<bool>, std::vector<bool>>, std::shared_ptr<const Form>> forms_;
};

/// Tensors without contents that show a backward's inputs: only metadata is read, and of those that
/// which sizes do not show.
std::vector<at::Tensor> stand_ins(const Graph& backward, c10::Device device);

}  // namespace ingot::trace
