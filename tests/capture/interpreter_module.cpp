// `_interpreter_test`: the interpreter for tests, without PyTorch. Runs everything under it, hands
// frames back at random, logs what an observer sees, and interrupts functions to rebuild their
// frames.
#include <Python.h>

#include <algorithm>
#include <string>
#include <vector>

#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/observer.h"

namespace ingot::capture {
namespace {

PyObject* everything_hook(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown) {
    if (version::is_tracing(thread)) return _PyEval_EvalFrameDefault(thread, frame, thrown);
    return evaluate(thread, frame, thrown != 0, nullptr);
}

PyObject* everything(PyObject*, PyObject* on) {
    int truth = PyObject_IsTrue(on);
    if (truth < 0) return nullptr;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(),
                                         truth != 0 ? everything_hook : _PyEval_EvalFrameDefault);
    Py_RETURN_NONE;
}

/// Hands frames back at about one instruction in `rate`, by a generator of random numbers.
class RandomHandBack final : public Probe {
  public:
    RandomHandBack(std::uint64_t seed, std::uint64_t rate) : state_(seed | 1), rate_(rate) {}
    Verdict at_instruction(Frame) override {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        if (state_ % rate_ != 0) return Verdict::run;
        ++count;
        return Verdict::hand_back;
    }
    long count = 0;

  private:
    std::uint64_t state_;
    std::uint64_t rate_;
};

PyObject* hand_back_randomly(PyObject*, PyObject* arguments) {
    PyObject* callable;
    unsigned long long seed, rate;
    if (!PyArg_ParseTuple(arguments, "OKK", &callable, &seed, &rate)) return nullptr;
    RandomHandBack probe(seed, rate);
    PyObject* result;
    {
        Session session(nullptr);
        session.set_probe(&probe);
        result = PyObject_CallNoArgs(callable);
    }
    if (result == nullptr) return nullptr;
    return Py_BuildValue("(Nl)", result, probe.count);
}

PyObject* run_interpreted(PyObject*, PyObject* callable) {
    Session session(nullptr);
    return PyObject_CallNoArgs(callable);
}

/// A short text for a value, without addresses.
std::string show(PyObject* value) {
    if (value == nullptr) return "-";
    std::string text = Py_TYPE(value)->tp_name;
    bool simple = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
                  PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
    PyObject* shown = simple ? PyObject_Repr(value) : PyObject_GetAttrString(value, "__name__");
    PyErr_Clear();
    if (shown != nullptr && PyUnicode_Check(shown))
        text = simple ? PyUnicode_AsUTF8(shown) : text + ":" + PyUnicode_AsUTF8(shown);
    Py_XDECREF(shown);
    return text;
}

/// Writes a line for each report; a Python callable may answer `before`.
class Logger final : public Observer {
  public:
    Logger(PyObject* lines, PyObject* answer) : lines_(lines), answer_(answer) {}

    Verdict entered(Frame frame, Entry entry) override {
        static constexpr const char* kHow[] = {"called", "resumed", "rebuilt"};
        write(frame, std::string("entered ") + kHow[static_cast<int>(entry)] +
                         (frame.is_direct() ? " directly" : ""));
        return Verdict::run;
    }
    void left(Frame frame, Exit exit, PyObject* result) override {
        static constexpr const char* kHow[] = {"returned", "raised", "suspended", "handed back",
                                               "lost"};
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        write(frame, std::string("left ") + kHow[static_cast<int>(exit)] + " " + show(result));
        PyErr_Restore(type, value, traceback);
    }
    Verdict before(Frame frame, const Event& event, PyObject** result) override {
        if (answer_ == Py_None) return Verdict::run;
        PyObject* operands = PyList_New(0);
        for (PyObject* operand : event.operands)
            PyList_Append(operands, operand != nullptr ? operand : Py_None);
        PyObject* answer = PyObject_CallFunction(
            answer_, "sOOii", operation_name(event.operation), operands,
            event.name != nullptr ? event.name : Py_None, event.detail, frame.offset());
        Py_DECREF(operands);
        if (answer == nullptr) return Verdict::raise;
        Verdict verdict = Verdict::run;
        if (PyTuple_Check(answer)) {
            *result = Py_NewRef(PyTuple_GET_ITEM(answer, 0));
            verdict = Verdict::handled;
        } else if (answer == Py_True) {
            verdict = Verdict::hand_back;
        } else if (PyExceptionInstance_Check(answer)) {  // which the program is ended with
            Session::current()->abort_with(answer);
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(answer)), answer);
            verdict = Verdict::raise;
        }
        Py_DECREF(answer);
        return verdict;
    }
    bool after(Frame frame, const Event& event, PyObject* result) override {
        write(frame, describe(event) + " -> " + show(result));
        return true;
    }
    void raised(Frame frame, const Event& event) override {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        write(frame, describe(event) + " raised " + show(type));
        PyErr_Restore(type, value, traceback);
    }

  private:
    static std::string describe(const Event& event) {
        std::string text = operation_name(event.operation);
        if (event.name != nullptr) text += std::string(" ") + PyUnicode_AsUTF8(event.name);
        if (event.detail != 0) text += " [" + std::to_string(event.detail) + "]";
        for (PyObject* operand : event.operands) text += " " + show(operand);
        if (event.keyword_names != nullptr) text += " with keywords";
        return text;
    }
    void write(Frame frame, const std::string& text) {
        int line = frame.line() - frame.code()->co_firstlineno;
        PyObject* object =
            PyUnicode_FromFormat("%U+%d %s", frame.code()->co_name, line, text.c_str());
        if (object == nullptr || PyList_Append(lines_, object) != 0) PyErr_Clear();
        Py_XDECREF(object);
    }
    PyObject* lines_;
    PyObject* answer_;
};

PyObject* observe(PyObject*, PyObject* arguments) {
    PyObject *callable, *answer = Py_None;
    if (!PyArg_ParseTuple(arguments, "O|O", &callable, &answer)) return nullptr;
    PyObject* lines = PyList_New(0);
    Logger logger(lines, answer);
    PyObject* result;
    {
        Session session(&logger);
        result = PyObject_CallNoArgs(callable);
    }
    if (result == nullptr) {
        Py_DECREF(lines);
        return nullptr;
    }
    return Py_BuildValue("(NN)", result, lines);
}

/// At one instruction: takes images of all frames, runs them to their end, and drops the originals.
class Interrupt final : public Probe {
  public:
    Interrupt(long at, bool interpreted) : left_(at), interpreted_(interpreted) {}

    Verdict at_instruction(Frame frame) override {
        if (reached || left_-- > 0) return Verdict::run;
        reached = true;
        std::vector<FrameImage> images;
        bool waits = false, possible = true;
        for (std::optional<Frame> at = frame; at; at = at->caller()) {
            Resume resume = waits ? Resume::complete : Resume::execute;
            possible = possible && can_rebuild(at->code(), at->offset(), resume) &&
                       (at->is_direct() || !at->caller());
            if (!possible) return Verdict::run;
            images.push_back(FrameImage::of(*at));
            images.back().resume = resume;
            waits = true;
        }
        rebuilt = true;
        std::reverse(images.begin(), images.end());
        if (interpreted_) {
            Session session(nullptr);
            result = run_frames(std::move(images), nullptr);
        } else {
            result = run_frames(std::move(images), nullptr);
        }
        if (result == nullptr) PyErr_Fetch(&type, &value, &traceback);
        PyErr_SetString(PyExc_SystemError, "interrupted");
        return Verdict::handled;
    }

    bool reached = false, rebuilt = false;
    PyObject *result = nullptr, *type = nullptr, *value = nullptr, *traceback = nullptr;

  private:
    long left_;
    bool interpreted_;
};

/// (reached, rebuilt, result): calls `callable`, interrupted at an instruction.
PyObject* interrupt(PyObject*, PyObject* arguments) {
    PyObject* callable;
    long at;
    int interpreted;
    if (!PyArg_ParseTuple(arguments, "Olp", &callable, &at, &interpreted)) return nullptr;
    Interrupt probe(at, interpreted != 0);
    PyObject* result;
    {
        Session session(nullptr);
        session.set_probe(&probe);
        result = PyObject_CallNoArgs(callable);
    }
    if (probe.rebuilt) {
        Py_XDECREF(result);
        PyErr_Clear();
        if (probe.result == nullptr) {
            PyErr_Restore(probe.type, probe.value, probe.traceback);
            return nullptr;
        }
        result = probe.result;
    }
    if (result == nullptr) return nullptr;
    return Py_BuildValue("(NNN)", PyBool_FromLong(probe.reached), PyBool_FromLong(probe.rebuilt),
                         result);
}

PyMethodDef kMethods[] = {
    {"everything", everything, METH_O, "Runs all frames of all threads under the interpreter."},
    {"run", run_interpreted, METH_O, "Calls a callable in a session without an observer."},
    {"hand_back_randomly", hand_back_randomly, METH_VARARGS, "(callable, seed, rate)"},
    {"observe", observe, METH_VARARGS, "(callable, answer=None): result and the log's lines."},
    {"interrupt", interrupt, METH_VARARGS, "(callable, instruction, interpreted)"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_interpreter_test", nullptr, -1, kMethods};

}  // namespace
}  // namespace ingot::capture

PyMODINIT_FUNC PyInit__interpreter_test() { return PyModule_Create(&ingot::capture::kModule); }
