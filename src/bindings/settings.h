// What every compilation from Python shares: the switches as C++ values, and the compilers.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bindings/text_compiler.h"
#include "runtime/driver.h"

namespace ingot::bindings {

/// Switches as the Python package hands them over: a dictionary with every switch in it.
struct Settings {
    runtime::CompileOptions compile;
    runtime::CompilerOptions compiler;
    bool round_intermediates = true;
    bool round_on_gpus = false;
    bool fallback = true;      // run eagerly what cannot be compiled
    bool training = true;      // compile backwards
    double memory_budget = 1;  // of training, see passes/partition.h

    explicit Settings(const pybind11::dict& values) {
        read(values, "freezing", compile.freezing);
        std::string checks;
        read(values, "weight_checks", checks);
        using Checks = runtime::WeightChecks;
        if (checks == "none") compile.weight_checks = Checks::None;
        if (checks == "all") compile.weight_checks = Checks::All;
        read(values, "max_autotune", compile.max_autotune);
        read(values, "gpu_products", compile.gpu_products);
        read(values, "debug", compile.debug);
        read(values, "background", compile.background);
        read(values, "cudagraphs", compile.cuda_graphs);
        read(values, "cache", compiler.cache);
        read(values, "cache_dir", compiler.cache_directory);
        read(values, "target", compiler.target);
        read(values, "perf_map", compiler.perf_map);
        read(values, "emulate_precision_casts", round_intermediates);
        read(values, "emulate_precision_casts_on_gpus", round_on_gpus);
        read(values, "fallback", fallback);
        read(values, "training", training);
        read(values, "memory_budget", memory_budget);
        std::string codegen;
        read(values, "codegen", codegen);
        if (codegen == "triton") compile.text_compiler = triton_compiler();
    }

    /// Whether a program for the device rounds where eager does, or only what it stores.
    bool rounds(bool gpu) const { return gpu ? round_on_gpus : round_intermediates; }

  private:
    template <class T>
    static void read(const pybind11::dict& values, const char* key, T& into) {
        if (values.contains(key)) into = values[key].template cast<T>();
    }
};

/// One compiler for each cache folder and target, for the life of the process: it keeps the target,
/// the loaded kernels and the counters. A forked child starts with none, as a lock may have been
/// held.
class Compilers {
  public:
    std::shared_ptr<const runtime::Compiler> get(const runtime::CompilerOptions& options) {
        std::lock_guard lock(mutex_);
        if (const auto known = by_options_.find(options); known != by_options_.end())
            return known->second;
        // Throws for a target that is not there, and leaves no entry then.
        auto compiler = std::make_shared<const runtime::Compiler>(options);
        return by_options_.emplace(options, std::move(compiler)).first->second;
    }
    static Compilers& instance() {
        if (current() == nullptr) current() = new Compilers;
        return *current();
    }
    /// The old ones stay where they are: programs made before the fork go on using their code.
    static void after_fork() {
        release();
        current() = new Compilers;
    }

    /// Stops what compiles in the background, until `release` or for good: a thread must not be in
    /// the middle of something when the process forks, nor when it ends.
    static void hold() {
        for (const auto& c : all()) c->background().hold();
    }
    static void release() {
        for (const auto& c : all()) c->background().release();
    }
    /// Until nothing is being compiled in the background.
    static void wait() {
        for (const auto& c : all()) c->background().wait();
    }

  private:
    /// None where a thread that a fork has not copied held the lock.
    static std::vector<std::shared_ptr<const runtime::Compiler>> all() {
        std::vector<std::shared_ptr<const runtime::Compiler>> list;
        if (current() == nullptr) return list;
        std::unique_lock lock(current()->mutex_, std::try_to_lock);
        for (int turn = 0; !lock && turn < 1000; ++turn) {
            std::this_thread::yield();
            (void)lock.try_lock();
        }
        if (lock)
            for (const auto& [options, compiler] : current()->by_options_) list.push_back(compiler);
        return list;
    }
    static Compilers*& current() {
        static Compilers* compilers = nullptr;
        return compilers;
    }
    std::mutex mutex_;
    std::map<runtime::CompilerOptions, std::shared_ptr<const runtime::Compiler>> by_options_;
};

}  // namespace ingot::bindings
