// The evaluator: executes one CPython frame, instruction by instruction. The state it keeps beside
// the frame is what CPython's own evaluator keeps in registers. One lives on the C stack for each
// frame being executed. The semantics of the instructions are methods, in files by their kind
// (values, operators, names, calls, control, exceptions, matching, generators, imports); a
// version's table (opcodes_py311.def) says which instruction has which. Stands behind the PEP 523
// hook.
#pragma once
#include "capture/interpreter/cpython.h"
#include "capture/interpreter/observer.h"

namespace ingot::capture {

/// What follows an instruction.
enum class Step : std::uint8_t {
    next,       ///< the instruction at `next_`
    error,      ///< raise the error that is set, with a line in the traceback
    unwind,     ///< the same without a line in the traceback (it is there already)
    leave,      ///< return `result_` from the frame
    suspend,    ///< the same from a generator, which may be resumed
    finish,     ///< CPython executes this instruction, which leaves the frame
    hand_back,  ///< CPython executes this instruction and the rest of the frame
};

class Evaluator {
  public:
    /// For `frame`, which CPython has handed to the hook. `session` may be nullptr.
    Evaluator(PyThreadState* thread, _PyInterpreterFrame* frame, Session* session);
    Evaluator(const Evaluator&) = delete;
    Evaluator& operator=(const Evaluator&) = delete;
    ~Evaluator();

    /// Executes the frame to its end, or to where CPython takes over, whose result it then gives.
    /// `thrown`: the error that is set is to be raised where the frame stands.
    PyObject* run(bool thrown, Entry entry);

    /// For a frame that waits in the middle of its current instruction for another one inside it
    /// (see rebuild.cpp): makes it the current frame of the thread; tells the observer. False when
    /// it may not run (the error is set).
    bool begin_waiting();
    /// Goes on behind the instruction with its result (taken over; nullptr: with the error set).
    PyObject* end_waiting(PyObject* result);

    // What `Frame` shows.
    _PyInterpreterFrame* frame() const { return frame_; }
    Evaluator* outer() const { return outer_; }
    int start_offset() const { return static_cast<int>(start_ - first()); }
    int instruction_offset() const { return static_cast<int>(current_ - first()); }
    int next_offset() const { return static_cast<int>(next_ - first()); }
    std::span<PyObject* const> stack() const {
        return {stack_base(), static_cast<std::size_t>(sp_ - stack_base())};
    }
    bool is_direct() const { return direct_; }

  private:
    friend struct Instructions;
    friend class Session;

    _Py_CODEUNIT* first() const { return _PyCode_CODE(frame_->f_code); }
    PyObject** stack_base() const { return frame_->localsplus + frame_->f_code->co_nlocalsplus; }

    // --- evaluator.cpp: the loop and its ends
    void load_state();
    void flush(_Py_CODEUNIT* next);
    void decode_current();
    void complete(PyObject* result);
    bool enter(Entry entry, bool* hand_back);
    Step loop();
    template <bool Observed>
    Step loop_as();
    Step execute(int opcode, int argument);
    Step probe();
    Step unwind(bool with_traceback);
    bool has_handler() const;
    PyObject* drive(Step step);
    PyObject* finish_raised();
    PyObject* continue_by_cpython(bool thrown, bool whole_frame);
    void leave_frame();
    void tell_left(Exit exit, PyObject* result);

    // --- aborting.cpp
    /// Whether it is the exception with which the session ends the program.
    bool aborts(PyObject* exception) const {
        return session_ != nullptr && session_->aborting_with() == exception &&
               exception != nullptr;
    }
    /// Raises that where the frame stands.
    Step abort();
    Step discard_aborting();
    void keep_aborting(PyObject* handled);

    // --- the stack
    void push(PyObject* value) { *sp_++ = value; }
    PyObject* pop() { return *--sp_; }
    PyObject*& top(int n = 1) { return sp_[-n]; }
    /// Removes and releases the topmost values.
    void drop(int count) {
        while (count-- > 0) {
            PyObject* value = pop();
            Py_XDECREF(value);
        }
    }
    /// Replaces the topmost `count` values by `result`, releasing them behind that.
    void replace(int count, PyObject* result) {
        PyObject** base = sp_ - count;
        PyObject* released[3];
        for (int i = 0; i < count; ++i) released[i] = base[i];
        base[0] = result;
        sp_ = base + 1;
        for (int i = count - 1; i >= 0; --i) Py_DECREF(released[i]);
    }
    PyObject*& local(int slot) { return frame_->localsplus[slot]; }
    PyObject* name(int index) const { return PyTuple_GET_ITEM(frame_->f_code->co_names, index); }
    PyObject* constant(int index) const {
        return PyTuple_GET_ITEM(frame_->f_code->co_consts, index);
    }
    PyObject* slot_name(int slot) const {
        return PyTuple_GET_ITEM(frame_->f_code->co_localsplusnames, slot);
    }

    // --- observe.h: reports
    /// Does `work`, which returns a new reference, or nullptr with the error set (or, for `next`,
    /// without), as the operation `event`. False when it failed: return `failed()`.
    template <class Work>
    bool perform(const Event& event, PyObject** result, Work&& work);
    /// The same for operations without a result; `work` returns whether it succeeded.
    template <class Work>
    bool perform_effect(const Event& event, Work&& work);
    bool perform_observed(const Event& event, PyObject** result, PyObject* (*work)(void*),
                          void* context);
    bool report(const Event& event, PyObject* result);
    bool report_hash(std::span<PyObject* const> keys);
    Step failed() const { return hand_back_ ? Step::hand_back : Step::error; }
    /// Pushes a new reference, or goes to the handler of the error.
    Step push_result(bool succeeded, PyObject* result) {
        if (!succeeded) [[unlikely]]
            return failed();
        push(result);
        return Step::next;
    }

    // --- control.cpp
    Step check_breaker() {
        if (!version::eval_breaker_is_set(thread_)) [[likely]]
            return Step::next;
        return handle_breaker();
    }
    Step handle_breaker();
    int truth_of(PyObject* value);
    Step jump_if(bool jump_when, int offset, bool backward);
    Step jump_if_none(bool jump_when, int offset, bool backward);
    Step jump_if_or_pop(bool jump_when, int offset);

    // --- helpers of the instructions
    Step unary(UnaryOperator which, PyObject* (*function)(PyObject*));
    bool append_in_place(PyObject* left, PyObject* right, Step* step);
    Step unbound_local(int slot);
    Step unbound_cell(int slot);
    Step push_class_cell(int slot, PyObject* mapping);
    PyObject* look_up_name(PyObject* name);
    PyObject* look_up_global(PyObject* name, bool* from_builtins);
    Step call_with(PyObject** base, Py_ssize_t count, int below);
    Step unpack_to(int count, int after);
    Step enter_context(PyObject* enter_name, PyObject* exit_name, bool asynchronous);
    Step import_all(PyObject* module);
    void look_for_direct(PyObject* callable);

    // --- the instructions, one method each
#define SEMANTICS(method) Step method(int argument);
#include "capture/interpreter/semantics.def"
#undef SEMANTICS

    PyThreadState* thread_;
    _PyInterpreterFrame* frame_;
    PyObject** sp_ = nullptr;            // one above the topmost value
    _Py_CODEUNIT* next_ = nullptr;       // the next instruction
    _Py_CODEUNIT* current_ = nullptr;    // the current one, behind its prefixes
    _Py_CODEUNIT* start_ = nullptr;      // the current one with its prefixes
    PyObject* keyword_names_ = nullptr;  // borrowed: set by KW_NAMES for the next CALL
    PyObject* result_ = nullptr;         // what the frame returns
    Exit exit_ = Exit::returned;         // how, when CPython executes the last instruction
    Session* session_;
    Observer* observer_;
    Evaluator* outer_ = nullptr;                 // the next one further out of the same session
    PyFunctionObject* direct_target_ = nullptr;  // borrowed: whose frame would be the call's work
    bool direct_ = false;
    bool hand_back_ = false;  // an observer asked for it
    bool left_ = false;
    bool must_abort_ = false;  // it ran when the session was aborted
    bool cleans_up_ = false;   // the exception has come to a handler of the frame
    _PyCFrame cframe_;
};

/// Executes a frame as the PEP 523 hook is asked to.
PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, bool thrown,
                   Session* session);

}  // namespace ingot::capture
