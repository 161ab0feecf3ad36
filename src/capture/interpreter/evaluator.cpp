#include "capture/interpreter/evaluator.h"

#include "capture/interpreter/hot.h"

namespace ingot::capture {

Evaluator::Evaluator(PyThreadState* thread, _PyInterpreterFrame* frame, Session* session)
    : thread_(thread),
      frame_(frame),
      session_(session),
      observer_(session != nullptr ? session->observer_ : nullptr) {}

Evaluator::~Evaluator() = default;

void Evaluator::load_state() {
    next_ = frame_->prev_instr + 1;
    start_ = current_ = next_;
    sp_ = frame_->localsplus + frame_->stacktop;
    // As CPython does it: while a frame runs, its stack is not the garbage collector's business.
    frame_->stacktop = -1;
}

void Evaluator::flush(_Py_CODEUNIT* next) {
    frame_->prev_instr = next - 1;
    frame_->stacktop = static_cast<int>(sp_ - frame_->localsplus);
}

/// Links the evaluator into its session and asks the observer. False: do not execute; the error is
/// set unless *hand_back.
bool Evaluator::enter(Entry entry, bool* hand_back) {
    *hand_back = false;
    if (session_ == nullptr) return true;
    outer_ = session_->innermost_;
    session_->innermost_ = this;
    if (session_->aborting_with_ != nullptr) {  // a generator goes on, or rebuilt frames
        must_abort_ = entry == Entry::rebuilt;
        return true;
    }
    if (outer_ != nullptr && entry == Entry::called) {
        direct_ = outer_->direct_target_ != nullptr &&
                  outer_->direct_target_ == version::function_of(frame_) &&
                  version::called_by(cframe_, frame_) == outer_->frame_;
        outer_->direct_target_ = nullptr;
    } else if (outer_ != nullptr && entry == Entry::rebuilt) {
        direct_ = true;
    }
    if (observer_ == nullptr) return true;
    PyObject* error = entry == Entry::resumed && version::error_is_set(thread_)
                          ? version::take_exception()
                          : nullptr;  // a generator's throw(): hooks see no error
    Verdict verdict;
    {
        Quiet quiet(session_);
        verdict = observer_->entered(Frame(this), entry);
    }
    if (verdict != Verdict::raise && error != nullptr)
        version::restore_exception(error);
    else
        Py_XDECREF(error);
    *hand_back = verdict == Verdict::hand_back;
    return verdict == Verdict::run;
}

void Evaluator::tell_left(Exit exit, PyObject* result) {
    if (left_ || session_ == nullptr) return;
    left_ = true;
    if (observer_ != nullptr && !session_->stopped_) {
        Quiet quiet(session_);
        observer_->left(Frame(this), exit, result);
    }
    session_->innermost_ = outer_;
}

/// Takes the frame off the thread's stack of current frames.
void Evaluator::leave_frame() {
    version::leave_recursion(thread_);
    version::pop_frame(thread_, cframe_);
}

PyObject* Evaluator::run(bool thrown, Entry entry) {
    version::push_frame(thread_, cframe_, frame_);
    if (!version::enter_recursion(thread_)) {
        if (version::kOwnsFrames) {
            version::pop_frame(thread_, cframe_);
            return _PyEval_EvalFrameDefault(thread_, frame_, thrown);
        }
        leave_frame();
        return nullptr;
    }
    bool hand_back = false;
    load_state();
    if (thrown) current_ = frame_->prev_instr;  // which of its instructions raises
    if (!enter(entry, &hand_back)) {
        if (hand_back) return continue_by_cpython(thrown, true);
        return drive(unwind(true));
    }
    return drive(thrown ? unwind(true) : loop());
}

bool Evaluator::begin_waiting() {
    version::push_frame(thread_, cframe_, frame_);
    load_state();
    decode_current();
    if (!version::enter_recursion(thread_)) return false;
    bool hand_back = false;
    // A frame that waits cannot be handed over now; the loop does it when the result is there.
    if (enter(Entry::rebuilt, &hand_back)) return true;
    hand_back_ = hand_back;
    return hand_back;
}

PyObject* Evaluator::end_waiting(PyObject* result) {
    bool to_cpython = hand_back_ || session_ == nullptr || session_->stopped_;
    hand_back_ = false;
    if (result == nullptr) {
        if (to_cpython) return continue_by_cpython(true, false);
        return drive(unwind(true));
    }
    complete(result);
    start_ = next_;
    return to_cpython ? continue_by_cpython(false, false) : drive(loop());
}

/// Carries out how the frame ends.
PyObject* Evaluator::drive(Step step) {
    for (;;) {
        switch (step) {
            case Step::next:
                step = loop();
                break;
            case Step::error:
                step = unwind(true);
                break;
            case Step::unwind:
                step = unwind(false);
                break;
            case Step::finish:
                if (result_ != nullptr) tell_left(exit_, result_);
                return continue_by_cpython(false, false);
            case Step::hand_back:
                // (What makes a generator ends the frame.)
                if (session_ != nullptr && !session_->stopped_ && !hand_back_ &&
                    _PyOpcode_Deopt[_Py_OPCODE(*current_)] != RETURN_GENERATOR)
                    tell_left(Exit::lost, nullptr);
                return continue_by_cpython(false, false);
            case Step::suspend:
            case Step::leave:
                if (result_ == nullptr && version::kOwnsFrames) return finish_raised();
                tell_left(result_ == nullptr      ? Exit::raised
                          : step == Step::suspend ? Exit::suspended
                                                  : Exit::returned,
                          result_);
                frame_->stacktop = static_cast<int>(sp_ - frame_->localsplus);
                leave_frame();
                return result_;
        }
    }
}

/// Where CPython must clear the frame that an exception leaves: raises it there.
PyObject* Evaluator::finish_raised() {
    tell_left(Exit::raised, nullptr);
    // Frames that are dropped must not come to a handler: none covers the first instruction.
    frame_->prev_instr = session_ != nullptr && session_->dropped_ ? first() : current_;
    frame_->stacktop = static_cast<int>(sp_ - frame_->localsplus);
    leave_frame();
    return _PyEval_EvalFrameDefault(thread_, frame_, 1);
}

/// Gives the frame to CPython's evaluator, before its current instruction, or (`thrown`) to raise
/// the error that is set at it.
PyObject* Evaluator::continue_by_cpython(bool thrown, bool whole_frame) {
    tell_left(Exit::handed_back, nullptr);
    if (sp_ != nullptr) {
        if (whole_frame || !thrown)
            flush(start_);
        else
            flush(current_ + 1);
    }
    leave_frame();
    return _PyEval_EvalFrameDefault(thread_, frame_, thrown);
}

Step Evaluator::loop() { return session_ != nullptr ? loop_as<true>() : loop_as<false>(); }

/// Before an instruction of a session's frame: whether CPython shall take over.
Step Evaluator::probe() {
    if (session_->stopped_) return Step::hand_back;
    if (session_->aborting_with_ != nullptr && must_abort_ && !cleans_up_) return abort();
    if (session_->probe_ == nullptr) return Step::next;
    Quiet quiet(session_);
    switch (session_->probe_->at_instruction(Frame(this))) {
        case Verdict::hand_back:
            return Step::hand_back;
        case Verdict::raise:
            return Step::error;
        case Verdict::handled:
            session_->dropped_ = true;
            return Step::error;
        default:
            return Step::next;
    }
}

template <bool Observed>
Step Evaluator::loop_as() {
    for (;;) {
        // A call with keywords begins at KW_NAMES, whose effect the frame does not hold.
        if (keyword_names_ == nullptr) start_ = next_;
        if (version::is_tracing(cframe_)) [[unlikely]]
            return Step::hand_back;
        _Py_CODEUNIT* at = next_;
        int opcode = _PyOpcode_Deopt[_Py_OPCODE(*at)];
        int argument = _Py_OPARG(*at);
        while (opcode == EXTENDED_ARG) [[unlikely]] {
            ++at;
            opcode = _PyOpcode_Deopt[_Py_OPCODE(*at)];
            argument = argument << 8 | _Py_OPARG(*at);
        }
        current_ = at;
        frame_->prev_instr = at;
        next_ = at + 1 + _PyOpcode_Caches[opcode];
        if constexpr (Observed) {
            Step step = probe();
            if (step != Step::next) [[unlikely]] {
                if (step == Step::hand_back) return step;
                step = unwind(true);
                if (step != Step::next) return step;
                continue;
            }
        }
        Step step = execute(opcode, argument);
        if (step == Step::next) [[likely]]
            continue;
        if (step != Step::error && step != Step::unwind) return step;
        step = unwind(step == Step::error);
        if (step != Step::next) return step;
    }
}

[[gnu::always_inline]] inline Step Evaluator::execute(int opcode, int argument) {
    switch (opcode) {
#define INSTRUCTION(opcode, method) \
    case opcode:                    \
        return method(argument);
#include "capture/interpreter/opcodes.def"
#undef INSTRUCTION
        default:
            return Step::hand_back;
    }
}

namespace {

/// One number of the exception table, and where the next one starts.
const unsigned char* read_number(const unsigned char* at, int* number) {
    int value = *at & 63;
    while (*at & 64) {
        ++at;
        value = value << 6 | (*at & 63);
    }
    *number = value;
    return at + 1;
}

struct Handler {
    int target = 0;
    int depth = 0;
    bool keeps_offset = false;
};

/// The handler of the instruction at `offset`, by the code's exception table: entries of start,
/// size, target, depth and a flag, ordered by start; the first byte of an entry has its highest bit
/// set.
bool find_handler(PyCodeObject* code, int offset, Handler* handler) {
    auto* begin =
        reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_exceptiontable));
    auto* end = begin + PyBytes_GET_SIZE(code->co_exceptiontable);
    // Halve the table until few entries are left.
    while (end - begin > 40) {
        const unsigned char* middle = begin + (end - begin) / 2;
        while ((*middle & 128) == 0) --middle;
        int start;
        read_number(middle, &start);
        if (start > offset)
            end = middle;
        else if (middle == begin)
            break;
        else
            begin = middle;
    }
    while (begin < end) {
        int start, size, depth;
        begin = read_number(begin, &start);
        if (start > offset) return false;
        begin = read_number(begin, &size);
        begin = read_number(begin, &handler->target);
        begin = read_number(begin, &depth);
        handler->depth = depth >> 1;
        handler->keeps_offset = (depth & 1) != 0;
        if (offset < start + size) return true;
    }
    return false;
}

}  // namespace

bool Evaluator::has_handler() const {
    Handler handler;
    return find_handler(frame_->f_code, instruction_offset(), &handler);
}

/// Goes to the handler of the error that is set, or makes the frame end with it.
Step Evaluator::unwind(bool with_traceback) {
    keyword_names_ = nullptr;
    direct_target_ = nullptr;
    Handler handler;
    bool handled = find_handler(frame_->f_code, instruction_offset(), &handler);
    if (session_ != nullptr && session_->dropped_) [[unlikely]]
        handled = false;
    if (!handled && version::kOwnsFrames) {
        result_ = nullptr;  // CPython raises it there again, with the traceback's line
        return Step::leave;
    }
    if (!version::error_is_set(thread_)) [[unlikely]]
        PyErr_SetString(PyExc_SystemError, "error return without exception set");
    if (with_traceback && version::is_complete(frame_)) {
        if (PyFrameObject* object = PyEval_GetFrame()) PyTraceBack_Here(object);
    }
    PyObject** bottom = stack_base() + (handled ? handler.depth : 0);
    while (sp_ > bottom) {
        PyObject* value = pop();
        Py_XDECREF(value);
    }
    if (!handled) {
        result_ = nullptr;
        return Step::leave;
    }
    if (session_ != nullptr && session_->aborting_with_ != nullptr) [[unlikely]]
        cleans_up_ = cleans_up_ || version::error_is(thread_, session_->aborting_with_);
    if (handler.keeps_offset) {
        PyObject* offset = PyLong_FromLong(static_cast<long>(frame_->prev_instr - first()));
        if (offset == nullptr) return unwind(false);
        push(offset);
    }
    push(version::take_exception());
    next_ = first() + handler.target;
    return Step::next;
}

PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, bool thrown,
                   Session* session) {
    Evaluator evaluator(thread, frame, session);
    bool resumed = frame->owner == FRAME_OWNED_BY_GENERATOR;
    return evaluator.run(thrown, resumed ? Entry::resumed : Entry::called);
}

}  // namespace ingot::capture
