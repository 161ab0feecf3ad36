// What the interpreter reports while it executes Python, and what it can be told to do instead. The
// recorder implements it; with no observer the interpreter is a plain evaluator, and the reports
// cost one predictable branch an instruction. Stands between the interpreter and the recorder.
//
// Rules for all hooks:
//  - References passed in are borrowed and live until the hook returns; keep one with Py_INCREF.
//  - No Python error is set when a hook is called (except in `raised`, which sees it set).
//  - A hook may run Python code and call into torch. Frames that start in a hook are not observed
//    and are run by CPython. (`Observed` lifts that for a call which is part of the program.)
//  - A hook raises by setting the Python error and returning `Verdict::raise` (or false): the
//    exception is then raised at the current instruction, as if that had failed.
//  - Hooks must not throw C++ exceptions.
//  - `Frame::offset` and `Frame::stack` in `before` describe the state from which the instruction
//    can be executed again: the place for a snapshot.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>
#include <span>

#include "capture/interpreter/frame.h"

namespace ingot::capture {

/// The answer of a hook that is asked before something happens.
enum class Verdict : std::uint8_t {
    run,        ///< do it
    handled,    ///< it is done: use the result that the hook handed over
    hand_back,  ///< leave the frame to CPython from this instruction on, and each frame further out
                ///< from its next instruction on: the recording is over
    raise,      ///< the Python error is set; raise it here
};

// clang-format off
/// What an instruction is about to do, or has done.
///
/// | operation       | operands                          | name       | detail             | result |
/// | --------------- | --------------------------------- | ---------- | ------------------ | ------ |
/// | read_local      | -                                 | its name   | slot               | value  |
/// | read_cell       | the cell                          | its name   | slot               | value  |
/// | read_global     | globals, builtins                 | its name   | 1: from builtins   | value  |
/// | read_name       | mapping, globals, builtins        | its name   | -                  | value  |
/// | read_attribute  | owner                             | attribute  | 1: to be called    | value  |
/// | read_item       | container, key                    | -          | -                  | value  |
/// | store_cell      | the cell, value                   | its name   | slot               | -      |
/// | store_global    | globals, value                    | its name   | -                  | -      |
/// | store_name      | mapping, value                    | its name   | -                  | -      |
/// | store_attribute | owner, value                      | attribute  | -                  | -      |
/// | store_item      | container, key, value             | -          | -                  | -      |
/// | delete_cell     | the cell                          | its name   | slot               | -      |
/// | delete_global   | globals                           | its name   | -                  | -      |
/// | delete_name     | mapping                           | its name   | -                  | -      |
/// | delete_attribute| owner                             | attribute  | -                  | -      |
/// | delete_item     | container, key                    | -          | -                  | -      |
/// | call            | callable, arguments...            | -          | positional count   | value  |
/// | call_expanded   | callable, tuple, dict or absent   | -          | -                  | value  |
/// | unary           | operand                           | -          | UnaryOperator      | value  |
/// | binary          | left, right                       | -          | NB_ADD, ...        | value  |
/// | compare         | left, right                       | -          | Py_LT ... Py_GE    | value  |
/// | identical       | left, right                       | -          | 1: `is not`        | bool   |
/// | contains        | needle, container                 | -          | 1: `not in`        | bool   |
/// | truth           | operand                           | -          | -                  | bool   |
/// | is_none         | operand                           | -          | 1: `is not None`   | bool   |
/// | iterate         | iterable                          | -          | -                  | iterator |
/// | next            | iterator                          | -          | -                  | item; nullptr: the end |
/// | unpack          | iterable                          | -          | count, -1: starred, -2: arguments | - |
/// | extend_list     | list, iterable                    | -          | -                  | -      |
/// | extend_set      | set, iterable                     | -          | -                  | -      |
/// | extend_dict     | dict, mapping                     | -          | 1: of a call       | -      |
/// | add_item        | list, set or dict; item, or key, value | -     | -                  | -      |
/// | format          | value, specification or absent    | -          | FVC_*              | str    |
/// | enter_context   | manager                           | -          | 1: asynchronous    | of `__enter__` |
/// | exit_context    | exit, type, value, traceback      | -          | -                  | value  |
/// | match_class     | subject, class, keyword names     | -          | positional count   | tuple, None |
/// | match_keys      | subject, keys                     | -          | -                  | tuple, None |
/// | match_kind      | subject                           | -          | 1 sequence, 0 mapping | bool |
/// | length          | operand                           | -          | -                  | int    |
/// | import_name     | globals, from list, level         | module     | -                  | module |
/// | import_from     | module                            | its name   | -                  | value  |
/// | import_star     | module                            | -          | -                  | -      |
/// | match_exception | exception, class                  | -          | 1: `except*`       | bool; matching part |
/// | hash            | keys of a new set or dict, or added by a comprehension | - | -       | -      |
/// | yield_value     | value                             | -          | -                  | -      |
/// | send            | receiver, value                   | -          | -                  | value  |
/// | await           | operand                           | -          | 0 await, 1 async for, 2 its next, 3 yield from | iterator |
///
/// Not reported: what only moves values (constants, storing locals, building tuples, lists, dicts,
/// slices and strings from values on the stack, closures, the appending of comprehensions).
// clang-format on
enum class Operation : std::uint8_t {
    read_local,
    read_cell,
    read_global,
    read_name,
    read_attribute,
    read_item,
    store_cell,
    store_global,
    store_name,
    store_attribute,
    store_item,
    delete_cell,
    delete_global,
    delete_name,
    delete_attribute,
    delete_item,
    call,
    call_expanded,
    unary,
    binary,
    compare,
    identical,
    contains,
    truth,
    is_none,
    iterate,
    next,
    unpack,
    extend_list,
    extend_set,
    extend_dict,
    add_item,
    format,
    enter_context,
    exit_context,
    match_class,
    match_keys,
    match_kind,
    length,
    import_name,
    import_from,
    import_star,
    match_exception,
    yield_value,
    send,
    await,
    hash,
};
/// Its name as in the table above.
const char* operation_name(Operation operation);

enum class UnaryOperator : std::uint8_t { positive, negative, invert, logical_not };

/// One operation of the table, borrowed for the time of a hook.
struct Event {
    Operation operation;
    int detail = 0;
    std::span<PyObject* const> operands;  ///< an absent operand is nullptr
    PyObject* name = nullptr;             ///< a str, or nullptr
    PyObject* keyword_names = nullptr;    ///< of a `call`: tuple of str or nullptr; the last
                                          ///< arguments are theirs, as in a vectorcall
};

class FrameHook;

/// How a frame came to be executed.
enum class Entry : std::uint8_t { called, resumed, rebuilt };
/// How it was left. `lost`: CPython goes on with it though nobody asked for that (it is traced, or
/// has an instruction that the interpreter does not know), and nothing of it is reported any more.
enum class Exit : std::uint8_t { returned, raised, suspended, handed_back, lost };

/// Receives what happens. All hooks are called in the session's thread with the GIL held.
class Observer {
  public:
    virtual ~Observer() = default;

    /// A frame is about to be executed: called before its first instruction (arguments are bound,
    /// cells are not yet made), when a generator goes on, or when it was rebuilt. `hand_back`
    /// lets CPython run this frame alone, unobserved; frames that it calls come here again.
    /// `handled` is not allowed.
    virtual Verdict entered(Frame frame, Entry entry) { return Verdict::run; }
    /// It was left. `result`: what it returned or yielded; nullptr for `raised` (the error is set
    /// and must stay as it is), `handed_back` and `lost` (CPython is about to go on with it).
    virtual void left(Frame frame, Exit exit, PyObject* result) {}

    /// Asked before each operation except `read_local` and `match_exception`. For `handled`, put a
    /// new reference into *result, of the kind that the table names (nothing for operations without
    /// a result; `nullptr` for the end of an iteration); a bool must be Py_True or Py_False.
    virtual Verdict before(Frame frame, const Event& event, PyObject** result) {
        return Verdict::run;
    }
    /// Told after an operation has succeeded (also when it was `handled`). `result` is borrowed,
    /// nullptr where the table says so. Returns false with the error set to raise.
    virtual bool after(Frame frame, const Event& event, PyObject* result) { return true; }
    /// Told when an operation has failed; the error is set and must stay as it is.
    virtual void raised(Frame frame, const Event& event) {}
};

/// Asked before every single instruction; for tests and debugging, since it is slow.
class Probe {
  public:
    virtual ~Probe() = default;
    /// `run`, `hand_back` (this frame alone) or `raise`; `handled`: this frame and those further
    /// out of the session are dropped, without running handlers; the error is set and leaves the
    /// outermost. `Frame::offset` and `Frame::stack` are as in `before`.
    virtual Verdict at_instruction(Frame frame) = 0;
};

/// While it lives, every Python frame that this thread starts or resumes is executed by the
/// interpreter and reported to `observer` (nullptr: executed only). Other threads are not affected,
/// apart from one indirect call a frame. Sessions of a thread nest; the innermost counts. Frames
/// that were running before it began are not touched. Must be destroyed in its thread, innermost
/// first, with the GIL held.
class Session {
  public:
    explicit Session(Observer* observer);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Ends the observation early: each frame hands itself to CPython at its next instruction and
    /// new ones are CPython's from the start. May be called from a hook.
    void stop() noexcept { stopped_ = true; }
    bool stopped() const noexcept { return stopped_; }
    /// A hook that raises: the frames of the session that the interpreter executes are dropped
    /// without running handlers, and the error leaves the outermost.
    void drop() noexcept { dropped_ = true; }
    /// From now on `error` (an exception, which is held) leaves all frames of the session that the
    /// interpreter executes, whatever they catch; what they clean up is done (aborting.cpp). New
    /// frames are CPython's and catch what they like. May be called from a hook, which need not
    /// raise it.
    void abort_with(PyObject* error) noexcept;
    /// What that was called with: borrowed, nullptr if it was not.
    PyObject* aborting_with() const noexcept { return aborting_with_; }
    /// Whether a frame that starts now would be executed by the interpreter.
    bool executes() const noexcept { return !stopped_ && quiet_ == 0; }
    Observer* observer() const noexcept { return observer_; }
    void set_probe(Probe* probe) noexcept { probe_ = probe; }
    /// The innermost frame that is being executed, if there is one.
    std::optional<Frame> innermost() const;
    /// The session of this thread, if there is one.
    static Session* current() noexcept;

  private:
    friend class Evaluator;
    friend class Observed;
    friend class Quiet;
    friend class FrameHook;
    std::unique_ptr<FrameHook> hook_;
    Observer* observer_;
    Session* outer_;
    Evaluator* innermost_ = nullptr;
    Probe* probe_ = nullptr;
    PyObject* aborting_with_ = nullptr;
    int quiet_ = 0;  // above zero while a hook runs: frames are CPython's
    bool stopped_ = false;
    bool dropped_ = false;  // a probe or a hook has dropped the frames
};

/// Whether a debugger or a profiler traces this thread's Python: no session sees its frames then.
bool frames_are_traced() noexcept;

/// Lets CPython run the frames that start while it lives.
class Quiet {
  public:
    explicit Quiet(Session* session = Session::current());
    ~Quiet();
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

  private:
    Session* session_;
};

/// In a hook: frames that start while it lives are executed and observed as if the instruction had
/// started them (a hook that runs the call itself to look at its outcome).
class Observed {
  public:
    Observed();
    ~Observed();
    Observed(const Observed&) = delete;
    Observed& operator=(const Observed&) = delete;

  private:
    Session* session_;
    int quiet_ = 0;
};

}  // namespace ingot::capture
