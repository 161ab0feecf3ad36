// Ingot for C++ programs that use libtorch: compile a function of tensors. No Python is involved.
//
//     auto fast = ingot::compile([&](const auto& x) { return std::vector{net->forward(x[0])}; },
//                                {example});
//     at::Tensor y = fast({x})[0];
//
// The function is run once, under no_grad, on stand-ins for the examples; what it does to tensors
// is compiled to machine code. Tensors it finds by itself (a module's parameters) are read anew at
// every call, and a changed one takes effect. The function must not depend on the values of tensors
// and must do the same at every call; its C++ side effects happen while compiling only.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ingot {

using Tensors = std::vector<at::Tensor>;
using TensorFunction = std::function<Tensors(const Tensors&)>;

struct Options {
    bool freezing = true;             // fold and pack parameters; a changed one is packed again
    bool round_intermediates = true;  // round low-precision intermediates where eager does
    bool cache = true;                // keep machine code on disk
    std::string cache_directory;      // empty: the user's cache folder
    std::string debug;                // folder for every level of the compilation; empty: none
    int size_limit = 64;              // programs kept for inputs of different sizes and types
};

/// A compiled function. Copies share their programs; calls are safe from many threads. Inputs of
/// other sizes or types are compiled for at their first call. What cannot be compiled, and calls
/// that need gradients, run the function itself.
class Compiled {
  public:
    Tensors operator()(const Tensors& inputs) const;
    /// Programs compiled so far.
    int program_count() const;
    /// Why the function itself runs instead of a program; empty if it never had to.
    std::string fallback_reason() const;

  private:
    friend Compiled compile(TensorFunction function, const Tensors& examples, Options options);
    struct State;
    explicit Compiled(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

/// Compiles `function` for inputs like `examples`.
Compiled compile(TensorFunction function, const Tensors& examples, Options options = {});

/// Compiles a module with `forward(tensor)` returning a tensor, held by a pointer or a module
/// holder.
template <class Module>
    requires requires(Module m, at::Tensor t) {
        { m->forward(t) } -> std::convertible_to<at::Tensor>;
    }
Compiled compile(Module module, const Tensors& examples, Options options = {}) {
    return compile(
        TensorFunction([module](const Tensors& x) { return Tensors{module->forward(x.at(0))}; }),
        examples, std::move(options));
}

}  // namespace ingot
