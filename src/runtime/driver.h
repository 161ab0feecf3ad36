// From a graph to a program: passes, schedule, code generation, loading; the whole compiler behind
// one call.
//
// A Compiler holds what compilations share: the target, the JIT, the disk cache and the kernels
// already loaded in this process. Kernels are compiled on the compiler's own threads, equal ones
// once; what the disk cache has is only loaded. Everything that steers a compilation stands in
// CompileOptions, a plain value.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "runtime/background.h"
#include "runtime/program.h"
#include "runtime/text_compiler.h"
#include "runtime/tuning_report.h"

namespace ingot::runtime {

/// How much of the inputs of frozen values is compared at each call with what they were made from
/// (fingerprint.h), where nothing says that they have changed.
enum class WeightChecks : std::uint8_t { None, Part, All };

struct CompileOptions {
    bool freezing = true;  // keep values that depend on frozen inputs alone between calls
    WeightChecks weight_checks = WeightChecks::Part;
    bool pack_matmuls = true;    // bring frozen right sides into panels; false: for the first calls
    bool max_autotune = false;   // on GPUs: take the forms of kernels that measuring has found
    double tuning_seconds = 10;  // that measuring may take, see tune()
    std::string debug;           // folder for every level of this compilation; empty: none
    int threads = 0;             // of the compiler; 0: one a core, at most 8
    int cores = 0;               // that the program will run on; 0: all of the target
    bool cuda_graphs = false;    // replay a GPU's steps as one graph where possible
    bool background = false;     // what calls can do without may be compiled while they go on
    /// >= 0: the program holds its own backward; of what it keeps for that (passes/partition.h).
    double memory_budget = -1;
    bool gpu_products = true;  // generate a GPU's products where they win with what follows them
    int gpu = -1;              // the GPU (its ordinal) that it will run on; -1: the processor
    /// Compiles a GPU's kernels from their text instead of LLVM; what it refuses, LLVM compiles.
    std::shared_ptr<const TextCompiler> text_compiler;
};

struct CompilerOptions {
    bool cache = true;
    std::string cache_directory;  // empty: the user's cache folder
    /// A processor to generate code for that this machine can pass for ("x86-64-v3"), so that code
    /// for lesser machines can be tried and cached; empty: this machine as it is.
    std::string target;
    bool perf_map = false;  // write names of functions to /tmp/perf-<pid>.map, for `perf report`
    auto operator<=>(const CompilerOptions&) const = default;
};

/// What a compilation did and how long each stage took, in seconds.
struct CompileReport {
    std::vector<std::pair<std::string, double>> stages;
    int kernels = 0;       // distinct kernels of the plan
    int compiled = 0;      // of them compiled now
    int from_disk = 0;     // loaded from the disk cache
    int from_process = 0;  // loaded before by this process
    int launches = 0;
    int externs = 0;
    int from_text = 0;                   // kernels by the compiler of text
    std::map<std::string, int> refused;  // why others are not, and how many
    double seconds() const;
};

/// Asked between stages and kernels; true ends the compilation with Interrupted.
using InterruptCheck = std::function<bool()>;
class Interrupted : public Error {
    using Error::Error;
};

/// What a compilation tells whoever asked for it, on that one's thread. Neither may throw.
struct CompileEvents {
    std::function<void(const Plan&)> planned;  // what the program will do is known
    std::function<void()> waiting;             // others compile its kernels: a GPU's, if any
};

/// A program that is being compiled while its maker does other things; to drop it gives it up.
class PendingProgram {
  public:
    using State = Background::Task::State;
    PendingProgram(std::shared_ptr<Background::Task> task,
                   std::shared_ptr<const std::shared_ptr<const Program>> result)
        : task_(std::move(task)), result_(std::move(result)) {}
    ~PendingProgram() { task_->give_up(); }
    PendingProgram(const PendingProgram&) = delete;
    PendingProgram& operator=(const PendingProgram&) = delete;

    State state() const { return task_->state(); }
    /// Once it is Done.
    const std::shared_ptr<const Program>& program() const { return *result_; }

  private:
    std::shared_ptr<Background::Task> task_;
    std::shared_ptr<const std::shared_ptr<const Program>> result_;
};

class Compiler {
  public:
    /// Throws UserError for a target that is unknown or that this machine cannot run.
    explicit Compiler(CompilerOptions options = {});
    ~Compiler();
    Compiler(const Compiler&) = delete;
    Compiler& operator=(const Compiler&) = delete;

    /// Throws NotSupported for a graph that this version does not compile, InternalError for a bug
    /// of its own. Safe from many threads.
    std::shared_ptr<const Program> compile(const Graph& graph, const CompileOptions& options,
                                           CompileReport* report = nullptr,
                                           const InterruptCheck& interrupted = {},
                                           const CompileEvents& events = {}) const;
    /// The same on one thread beside its callers' (background.h), with the memory for frozen values
    /// made ready. Takes its turn with others who make expressions in the graph's pool.
    std::unique_ptr<PendingProgram> compile_later(Graph graph, CompileOptions options) const;
    /// Measures the forms that the kernels of a GPU's program may have and keeps the best, for
    /// compilations with max_autotune from then on. The program with these forms, or null where it
    /// is the one there was. For one set of sizes; `externs` must know the GPU. Throws NotSupported
    /// where nothing can be measured.
    std::shared_ptr<const Program> tune(const Graph& graph, const CompileOptions& options,
                                        const ExternHost& externs, TuningReport& report,
                                        const InterruptCheck& interrupted = {}) const;
    /// The same beside its callers, as compile_later; the program may be null. `report` is complete
    /// when the task is Done.
    std::unique_ptr<PendingProgram> tune_later(Graph graph, CompileOptions options,
                                               std::shared_ptr<const ExternHost> externs,
                                               std::shared_ptr<TuningReport> report) const;
    /// The thread of compile_later: to be held over a fork, and from an exit on.
    Background& background() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The folder of the disk cache: $XDG_CACHE_HOME/ingot or ~/.cache/ingot; empty if neither is
/// known.
std::string default_cache_directory();

}  // namespace ingot::runtime
