// What all captured functions of the process share: counters, marks on callables, the stance.
//
// Everything here is touched with Python's lock held.
#pragma once
#include <Python.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace ingot::capture {

class ArenaOfSteps;

struct Counters {
    std::int64_t calls = 0;
    std::int64_t replays = 0;
    std::int64_t recordings = 0;
    std::int64_t eager_calls = 0;
    std::int64_t guard_failures = 0;
    std::int64_t breaks = 0;
    std::int64_t graphs = 0;
    std::int64_t training = 0;  // graphs with a backward
    std::int64_t operators = 0;
    std::int64_t kernels = 0, externs = 0;  // of the compiled graphs
    double record_seconds = 0;
    double compile_seconds = 0;

    void add(const Counters& other);
    /// A new dictionary, or nullptr with an error set.
    PyObject* as_dict() const;
};

enum class Mark {
    None,
    Disable,
    DisableOnce,
    Break,
    Allow,
    Constant,
    True,
    Wide,
    Checkpoint,  // PyTorch's, whose function is a region
    Annotation,  // a class of contexts that only profilers see
};

enum class Stance { Default, ForceEager, EagerOnRecompile, FailOnRecompile, EagerThenCompile };

struct State {
    Counters dropped;  // of captured functions that are gone
    std::map<std::string, std::int64_t> reasons;
    std::unordered_map<PyObject*, Mark> marks;  // callables are kept alive
    std::unordered_set<PyObject*> captured;     // borrowed: they take themselves out
    Stance stance = Stance::Default;
    std::shared_ptr<ArenaOfSteps> arena_of_steps;
    PyObject* forced = nullptr;  // takes the place of all calls: forced(captured, ...); held

    Mark mark_of(PyObject* callable) const {
        if (marks.empty()) return Mark::None;
        const auto found = marks.find(callable);
        return found == marks.end() ? Mark::None : found->second;
    }
};
State& state();

}  // namespace ingot::capture
