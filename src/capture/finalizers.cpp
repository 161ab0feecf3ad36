// Objects that do something when they go (`__del__`); part of recording.h.
//
// A recording runs a finalizer when its object goes, as code of the program. That is what replays
// do, too, if the object was made here: they never make it. One that is left to the collector would
// have to be made by them, and one from outside goes again when they write what let it go; such a
// segment means eager. What lets go of one from outside is a break, so that nothing of the
// recording holds it (departing.h), and what has been handed to the program there goes on without a
// recording. Costs a lookup for each call that gives an object with a finalizer.
#include <algorithm>

#include "capture/departing.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"

namespace ingot::capture {

void Recording::note_made(PyObject* object) {
    if (finalizer_of(Py_TYPE(object)) == nullptr || world_->find(object) != nullptr) return;
    has_finalizers_ = true;
    unfinished_.insert(object);
}

void Recording::note_finalizer(Frame frame, PyObject* function) {
    const auto slots = frame.slots();
    if (frame.is_direct() || frame.code()->co_argcount == 0 || slots.empty()) return;
    PyObject* self = slots[0];
    if (self != nullptr && PyCell_Check(self)) self = PyCell_GET(self);
    if (self == nullptr || finalizer_of(Py_TYPE(self)) != function) return;
    if (unfinished_.erase(self) != 0) return;
    if (give_up("the finalizer of an object that was not made here") == Verdict::raise)
        PyErr_Clear();  // not here, where nobody would see it: by the frame further out
}

bool Recording::holds_finalizers(Frame innermost) {
    const auto acts = [](PyObject* o) {
        return o != nullptr && finalizer_of(Py_TYPE(o)) != nullptr;
    };
    for (std::optional<Frame> f = innermost; f; f = f->caller())
        if (std::ranges::any_of(f->slots(), acts) || std::ranges::any_of(f->stack(), acts))
            return true;
    return false;
}

bool Recording::add_result(Py_ssize_t index, PyObject* result) {
    add_slot(index, result, "the result", false);
    if (acting_when_it_goes(result) == nullptr) return true;
    if (refusal_.empty()) refusal_ = "an object with a finalizer is handed to the program";
    return false;
}

void Recording::refuse_left_behind(const RecipeBuilder& builder) const {
    if (std::ranges::any_of(unfinished_, [&](PyObject* o) { return !builder.has(o); }))
        throw NoRecipe("an object with a finalizer is left to the collector");
}

}  // namespace ingot::capture
