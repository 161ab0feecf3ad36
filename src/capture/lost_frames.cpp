// Frames that CPython goes on with unseen, in the midst of a recording: a debugger or a profiler
// has begun to trace, or there is an instruction that the interpreter leaves to CPython (the end of
// an `except*` in 3.11). What they read is not guarded and what they decide not known, so nothing
// may be recorded of the call: what was is made real, and no segment comes of it.
//
// Flow: from Observer::left. Costs nothing where frames stay.
#include "bindings/errors.h"
#include "bindings/lock.h"
#include "capture/news.h"
#include "capture/recording.h"

namespace ingot::capture {

void Recording::lose(Frame frame) {
    const char* const reason = frames_are_traced() ? "a debugger or a profiler traces Python"
                                                   : "CPython carries out the rest of a function";
    if (over_) return;
    if (strict_ != Strict::No) {
        if (abandoned_.empty()) abandoned_ = reason;
        return;
    }
    const bindings::Pending pending;
    note_place(frame);
    try {
        drop_recording(recorder_->log().size(), reason, segment_->line);
        world_->let_go();
        if (must_be_whole())
            (void)end_program(unsupported(context_, reason, segment_->places));
        else
            tell_eager(reason);
    } catch (pybind11::error_already_set& e) {  // of an operator that was put off
        (void)end_program(Py_NewRef(e.value().ptr()));
    } catch (const std::exception& e) {
        (void)end_program(PyObject_CallFunction(PyExc_RuntimeError, "s", e.what()));
    }
    PyErr_Clear();  // the frame further out raises it
}

}  // namespace ingot::capture
