// `fullgraph`: a call that is no whole graph is an error, and lines in the log where a break is
// none.
//
// The error is raised where the recording meets the reason, and ends the program (Session::
// abort_with): a handler of the program cannot take it for its own and go another way. What was
// recorded is made real first, for what the program cleans up. The guards of such a recording mean
// the error from now on, so that a replay raises it at once, before anything of the program runs.
// Flow: from recording.h's hooks, and from `conclude` once the frames are gone.
#include "bindings/errors.h"
#include "bindings/lock.h"
#include "capture/news.h"
#include "capture/recording.h"
#include "capture/state.h"

namespace ingot::capture {

bool Recording::must_be_whole() const {
    return context_.fullgraph || state().torch.raises_at_breaks();
}

void Recording::note_place(std::optional<Frame> frame) {
    if (!frame || !segment_->places.empty()) return;
    segment_->places = places_of(*frame);
    segment_->line = segment_->places.back().text();
}

Verdict Recording::refuse(const std::string& reason) {
    over_ = true;
    segment_->refused = true;
    PyObject* const error = unsupported(context_, reason, segment_->places);
    error_ = Ref::borrow(error);
    {
        const bindings::Pending pending;
        try {
            end_eagerly(reason, Frames::Stay);
            world_->let_go();
        } catch (const std::exception&) {
            PyErr_Clear();  // the call has failed anyway
        }
    }
    return end_program(error);
}

Verdict Recording::end_program(PyObject* error) {
    over_ = true;
    error_ = Ref::borrow(error);
    if (Session* session = Session::current()) session->abort_with(error);
    raise_error(error);
    return Verdict::raise;
}

PyObject* Recording::conclude_with_error(PyObject* result) {
    const Ref dropped = Ref::steal(result);
    {
        bindings::Pending pending;
        PyObject* const other = pending.exception();
        // What ends the process, or this call from outside, goes before.
        if (other == error_.get() ||
            (other != nullptr && PyErr_GivenExceptionMatches(other, PyExc_Exception) == 0))
            return nullptr;
    }
    PyErr_Clear();
    return raise_error(error_.release());
}

PyObject* Recording::refuse_result(PyObject* result, const std::string& reason) {
    if (result == nullptr) return nullptr;
    Py_DECREF(result);
    return raise_error(unsupported(context_, reason, segment_->places));
}

void Recording::tell_eager(const std::string& reason) const {
    if (must_be_whole() || segment_->raises) return;
    tell(context_, at_call_ ? "eager" : "rest", reason, segment_->places);
}

void Recording::tell_break(const std::string& reason) const {
    tell(context_, "graph_break", reason, segment_->places);
}

void Recording::tell_compiled() const {
    if (tells_guards()) tell(context_, "compiled", {}, {}, segment_->guards.sentences());
}

}  // namespace ingot::capture
