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
    Checkpoint,       // PyTorch's, whose function is a region
    Annotation,       // a class of contexts that only profilers see
    TrueForPrograms,  // PyTorch's own code is told otherwise
};

enum class Stance { Default, ForceEager, EagerOnRecompile, FailOnRecompile, EagerThenCompile };

/// PyTorch's own controls, once the program has loaded TorchDynamo (`capture_controls`).
struct TorchControls {
    PyObject* stances = nullptr;   // the dict of the module that holds the stance; all are held
    PyObject* flags = nullptr;     // of the one that holds `error_on_graph_break`
    PyObject* allowed = nullptr;   // a set of what is taken as it is, by address
    PyObject* follow = nullptr;    // called with a stance that was set
    PyObject* settings = nullptr;  // gives what TorchControls::Settings holds
    std::uint64_t version = 0;     // of the dict of stances when it was looked at last
    PyObject* seen = nullptr;      // the stance then

    struct Settings {
        bool disabled = false;        // nothing new is compiled
        Py_ssize_t limit = -1;        // of recordings that may serve one call; -1: not said
        Py_ssize_t accumulated = -1;  // of recordings of a function
        PyObject* dynamic = Py_None;  // as the option of that name
    };
    /// What `torch._dynamo.config` says to this thread now. False: the Python error is set.
    bool read(Settings& result) const;
    /// Whether it lets something new be compiled.
    bool allows_recording() const;
    /// Follows a stance that was set by PyTorch's function; false with the error set. One
    /// comparison if nothing has happened.
    bool follow_stance();
    /// Whether `torch._dynamo.error_on_graph_break` holds.
    bool raises_at_breaks() const;
};

struct State {
    Counters dropped;  // of captured functions that are gone
    std::map<std::string, std::int64_t> reasons;
    std::unordered_map<PyObject*, Mark> marks;  // callables are kept alive
    std::unordered_set<PyObject*> captured;     // borrowed: they take themselves out
    Stance stance = Stance::Default;
    std::shared_ptr<ArenaOfSteps> arena_of_steps;
    PyObject* forced = nullptr;  // takes the place of all calls: forced(captured, ...); held
    TorchControls torch;

    Mark mark_of(PyObject* callable) const {
        if (marks.empty()) return Mark::None;
        const auto found = marks.find(callable);
        return found == marks.end() ? Mark::None : found->second;
    }
};
State& state();

}  // namespace ingot::capture
