// C code of the program that runs operators where nobody sees it: `map(values.__getitem__,
// tensors)` asks each tensor for its number, `slice(tensor, ...).indices(n)` as well; see
// recording.h.
//
// What is recorded is promised only, so the number is not there, and an error of the recorder's own
// would come out of the C code in the midst of its work, which cannot be done a second time: its
// iterators have moved. So the promises become real at that moment, the operator is carried out,
// and the rest of the call is CPython's. An operator with a gradient would have its place in the
// graph of the promises: there the call begins again without a recording, where it may. From the
// next recording on the operation of the program that led there is a break.
//
// Flow: from the recorder, when an operator cannot be recorded. Costs a comparison an operation of
// the program where there is such a place, and otherwise nothing.
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "bindings/errors.h"
#include "capture/callables.h"
#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

/// An operator comes to the recorder below autograd; what is made real is to have a history.
class AboveAutograd {
  public:
    AboveAutograd() : before_(c10::impl::tls_local_dispatch_key_set().excluded_) {
        if (!c10::InferenceMode::is_enabled())
            exclude(before_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    }
    ~AboveAutograd() { exclude(before_); }
    AboveAutograd(const AboveAutograd&) = delete;
    AboveAutograd& operator=(const AboveAutograd&) = delete;

  private:
    static void exclude(c10::DispatchKeySet excluded) {
        c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
        keys.excluded_ = excluded;
        c10::impl::_force_tls_local_dispatch_key_set(keys);
    }
    c10::DispatchKeySet before_;
};

}  // namespace

bool Recording::is_repeatable(const Event& event) {
    const auto moves = [](PyObject* o) {
        return o != nullptr && !is_tensor(o) && Py_TYPE(o)->tp_iternext != nullptr &&
               Py_TYPE(o)->tp_iternext != &_PyObject_NextNotImplemented;
    };
    const bool call =
        event.operation == Operation::call || event.operation == Operation::call_expanded;
    if (std::ranges::any_of(
            call ? arguments_of(event) : std::vector(event.operands.begin(), event.operands.end()),
            moves))
        return false;
    if (!call || is_operator_event(event)) return true;
    PyObject* callable = event.operands[0];
    if (PyMethod_Check(callable) || PyFunction_Check(callable) || PyType_Check(callable))
        return true;
    const CallKind kind = classify(callable).kind;
    return kind != CallKind::Mutator && kind != CallKind::SetItem;
}

bool Recording::go_on_for_real(std::string_view reason) {
    const pybind11::gil_scoped_acquire lock;  // a number is read without it
    const Session* const session = Session::current();
    if (over_ || scope_ == nullptr || session == nullptr || session->observer() != this ||
        !session->executes())
        return false;
    const auto frame = session->innermost();
    if (!frame || (!carrying_.empty() && carrying_.back() == *frame)) return false;
    const std::string why = "C code that needs the data of a tensor (" +
                            recorder_->failure().value_or("an operator") + ")";
    if (strict_ != Strict::No) {
        if (abandoned_.empty()) abandoned_ = why;
        return false;
    }
    auto* code = reinterpret_cast<PyObject*>(frame->code());
    context_.tree->asks.try_emplace({code, frame->offset()}, Ref::borrow(code), why);
    if (must_be_whole()) {
        recorder_->clear_failure();
        ++context_.counters.breaks;
        (void)give_up(why);
        throw pybind11::error_already_set();
    }
    if (reason.empty()) {  // with its place in PyTorch's graph: only from the beginning
        scope_.reset();    // whose mode counts as one that is left
        if (!may_begin_again(Transcript(*recorder_), Frames::Known, false)) {
            open_scope();
            return false;
        }
        context_.tree->abandoned.push_back({why, place_of(*frame), segment_->number});
        (void)drop_frames();
        throw pybind11::error_already_set();
    }
    recorder_->clear_failure();
    scope_.reset();
    {
        const AboveAutograd above;
        drop_recording(recorder_->log().size(), why, place_of(*frame));
    }
    world_->let_go();
    return true;
}

void Recording::refuse_known_asking(Frame frame) const {
    if (context_.tree->asks.empty()) return;
    auto* code = reinterpret_cast<PyObject*>(frame.code());
    const auto found = context_.tree->asks.find({code, frame.offset()});
    if (found != context_.tree->asks.end()) throw Puzzle(found->second.second);
}

}  // namespace ingot::capture
