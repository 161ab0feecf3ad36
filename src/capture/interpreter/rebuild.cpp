// Frames built anew in the middle of their functions. CPython itself makes each frame, by a call of
// its function with arguments that do not matter; the hook takes it, puts the image's values and
// place into it, and runs it or, for a frame further out, waits inside it for the next one's
// result. So the frames are as genuine as any, and CPython clears them.
#include <utility>

#include "capture/interpreter/decode.h"
#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/hook.h"

namespace ingot::capture {

FrameImage::FrameImage(FrameImage&& other) noexcept { *this = std::move(other); }

FrameImage& FrameImage::operator=(FrameImage&& other) noexcept {
    if (this == &other) return *this;
    clear();
    function = std::exchange(other.function, nullptr);
    offset = other.offset;
    resume = other.resume;
    slots = std::move(other.slots);
    stack = std::move(other.stack);
    other.slots.clear();
    other.stack.clear();
    return *this;
}

FrameImage::~FrameImage() { clear(); }

void FrameImage::clear() noexcept {
    // Released only when the image no longer shows them: this may run any code.
    auto dead_slots = std::exchange(slots, {});
    auto dead_stack = std::exchange(stack, {});
    PyFunctionObject* dead_function = std::exchange(function, nullptr);
    for (PyObject* value : dead_slots) Py_XDECREF(value);
    for (PyObject* value : dead_stack) Py_XDECREF(value);
    Py_XDECREF(dead_function);
}

FrameImage FrameImage::of(const Frame& frame) {
    FrameImage image;
    image.function = frame.function();
    Py_INCREF(image.function);
    image.offset = frame.offset();
    for (PyObject* value : frame.slots()) image.slots.push_back(Py_XNewRef(value));
    for (PyObject* value : frame.stack()) image.stack.push_back(Py_XNewRef(value));
    return image;
}

namespace {

/// What an instruction's result replaces.
struct Effect {
    int pops;
    bool pushes_marker = false;  // a nullptr below the result
    bool pushes_result = true;
};

std::optional<Effect> effect_of(int opcode, int argument) {
    switch (opcode) {
        case CALL:
            return Effect{argument + 2};
        case CALL_FUNCTION_EX:
            return Effect{3 + (argument & 1)};
        case BINARY_OP:
        case BINARY_SUBSCR:
        case COMPARE_OP:
        case CONTAINS_OP:
        case IS_OP:
        case IMPORT_NAME:
            return Effect{2};
        case UNARY_NEGATIVE:
        case UNARY_NOT:
        case UNARY_INVERT:
        case GET_ITER:
            return Effect{1};
        case FORMAT_VALUE:
            return Effect{1 + ((argument & FVS_MASK) == FVS_HAVE_SPEC)};
        case IMPORT_FROM:
        case FOR_ITER:
        case GET_LEN:
        case WITH_EXCEPT_START:
        case LOAD_NAME:
        case LOAD_DEREF:
            return Effect{0};
        case LOAD_GLOBAL:
            return Effect{0, (argument & 1) != 0};
        case STORE_ATTR:
            return Effect{2, false, false};
        case STORE_SUBSCR:
            return Effect{3, false, false};
        case DELETE_SUBSCR:
            return Effect{2, false, false};
        case DELETE_ATTR:
        case LIST_EXTEND:
        case SET_UPDATE:
        case DICT_UPDATE:
        case DICT_MERGE:
            return Effect{1, false, false};
        case LOAD_ATTR:
            return Effect{1, version::loads_method(opcode, argument)};
        default:
            break;
    }
    if (version::loads_method(opcode, argument)) return Effect{1, true};
    return std::nullopt;
}

}  // namespace

bool can_rebuild(PyCodeObject* code, int offset, Resume resume) {
    if ((code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0) return false;
    // Only functions get their frames from a call of the function.
    if ((code->co_flags & CO_OPTIMIZED) == 0) return false;
    if (offset < 0 || offset >= Py_SIZE(code)) return false;
    if (resume == Resume::execute) return true;
    Instruction instruction = decode(code, offset);
    return effect_of(instruction.opcode, instruction.argument).has_value();
}

/// Sets the place of a frame that waits in its current instruction.
void Evaluator::decode_current() {
    Instruction instruction = decode(frame_->f_code, start_offset());
    current_ = first() + instruction.at;
    frame_->prev_instr = current_;
    next_ = current_ + 1 + _PyOpcode_Caches[instruction.opcode];
}

/// Does what the current instruction does with its result.
void Evaluator::complete(PyObject* result) {
    Instruction instruction = decode(frame_->f_code, start_offset());
    Effect effect = *effect_of(instruction.opcode, instruction.argument);
    drop(effect.pops);
    if (effect.pushes_marker) push(nullptr);
    if (effect.pushes_result)
        push(result);
    else
        Py_DECREF(result);
}

namespace {

/// Builds one frame after the other, each inside the one before.
class Rebuild final : public FrameTaker {
  public:
    Rebuild(std::vector<FrameImage> images, PyObject* result)
        : images_(std::move(images)), result_(result) {
        // Building frames must not meet the error that is to be raised in the innermost one.
        if (result_ == nullptr && version::error_is_set(PyThreadState_Get()))
            error_ = version::take_exception();
    }
    ~Rebuild() override {
        Py_XDECREF(result_);
        Py_XDECREF(error_);
    }

    /// Runs the frames from `level_` inwards.
    PyObject* run_level() {
        FrameHook::wait_for(this);
        PyObject* result = call_function();
        FrameHook::wait_for(nullptr);
        return result;
    }

    bool takes(_PyInterpreterFrame* frame) override {
        return version::function_of(frame) == images_[level_].function;
    }

    PyObject* run(PyThreadState* thread, _PyInterpreterFrame* frame) override {
        FrameImage& image = images_[level_];
        bool innermost = level_ + 1 == images_.size();
        bool waits = !innermost || image.resume == Resume::complete;
        fill(frame, image);
        Session* session = Session::current();
        if (session != nullptr && !session->executes()) session = nullptr;
        if (!waits && session == nullptr) return _PyEval_EvalFrameDefault(thread, frame, 0);
        Evaluator evaluator(thread, frame, session);
        if (!waits) return evaluator.run(false, Entry::rebuilt);
        if (!evaluator.begin_waiting()) return evaluator.end_waiting(nullptr);
        PyObject* result = nullptr;
        if (innermost) {
            if (error_ != nullptr) version::restore_exception(std::exchange(error_, nullptr));
            result = std::exchange(result_, nullptr);
        } else {
            ++level_;
            result = run_level();
        }
        return evaluator.end_waiting(result);
    }

  private:
    /// Calls the level's function with as many arguments as it needs to be bound.
    PyObject* call_function() {
        auto* function = reinterpret_cast<PyObject*>(images_[level_].function);
        auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
        auto count = static_cast<std::size_t>(code->co_argcount + code->co_kwonlyargcount);
        std::vector<PyObject*> arguments(count, Py_None);
        PyObject* keywords = nullptr;
        if (code->co_kwonlyargcount > 0)
            keywords = PyTuple_GetSlice(code->co_localsplusnames, code->co_argcount,
                                        static_cast<Py_ssize_t>(count));
        Py_INCREF(function);
        PyObject* result = PyObject_Vectorcall(
            function, arguments.data(), static_cast<std::size_t>(code->co_argcount), keywords);
        Py_DECREF(function);
        Py_XDECREF(keywords);
        return result;
    }

    /// Gives the image's values and place to the frame.
    static void fill(_PyInterpreterFrame* frame, FrameImage& image) {
        std::vector<PyObject*> slots = std::exchange(image.slots, {});
        std::vector<PyObject*> stack = std::exchange(image.stack, {});
        for (std::size_t i = 0; i < slots.size(); ++i) std::swap(frame->localsplus[i], slots[i]);
        std::copy(stack.begin(), stack.end(), frame->localsplus + slots.size());
        frame->stacktop = static_cast<int>(slots.size() + stack.size());
        frame->prev_instr = _PyCode_CODE(frame->f_code) + image.offset - 1;
        for (PyObject* value : slots) Py_XDECREF(value);
    }

    std::vector<FrameImage> images_;
    std::size_t level_ = 0;
    PyObject* result_;
    PyObject* error_ = nullptr;
};

bool fits(const FrameImage& image, bool innermost) {
    if (image.function == nullptr) return false;
    auto* code = reinterpret_cast<PyCodeObject*>(image.function->func_code);
    return (innermost || image.resume == Resume::complete) &&
           can_rebuild(code, image.offset, image.resume) &&
           image.slots.size() == static_cast<std::size_t>(code->co_nlocalsplus) &&
           image.stack.size() <= static_cast<std::size_t>(code->co_stacksize);
}

}  // namespace

PyObject* run_frames(std::vector<FrameImage> images, PyObject* result) {
    bool usable = !images.empty();
    for (const FrameImage& image : images) usable = usable && fits(image, &image == &images.back());
    if (!usable) {
        Py_XDECREF(result);
        PyErr_SetString(PyExc_SystemError, "these frames cannot be rebuilt");
        return nullptr;
    }
    FrameHook hook;
    return Rebuild(std::move(images), result).run_level();
}

}  // namespace ingot::capture
