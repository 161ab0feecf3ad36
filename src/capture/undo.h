// What a recording has written to objects from outside, to be taken back where the recording turns
// out not to be what happens: an operator fails by its data when a segment ends, and the program
// goes on from the segment's beginning without a recording, so that its handlers see it
// (ending.cpp).
//
// World tells of each write before it is made. Costs a reference a key that is written, and a copy
// of a container that a method changes, while recording.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capture/iterators.h"
#include "capture/ref.h"
#include "capture/set_image.h"

namespace ingot::capture {

class Undo {
  public:
    // ---- before the write ----
    /// `deletes`: the key is there, and its place in the dict's order is going to be lost.
    void note_key(PyObject* dict, PyObject* key, bool deletes);
    void note_cell(PyObject* cell);
    /// What a descriptor of a member of `owner` gives.
    void note_member(PyObject* owner, PyObject* name);
    /// The attribute `grad` of a tensor, whose value was `before`. `calls`: how many calls have
    /// been recorded. Each of its writes is told, and may be told behind it.
    void note_gradient(PyObject* tensor, const at::Tensor& before, std::size_t calls);
    /// A list, dict, set or deque is going to be changed by a method.
    void note_contents(PyObject* container);
    /// An iterator is going to be moved.
    void note_move(PyObject* iterator) { moved_.emplace_back(iterator); }
    /// Something is done that cannot be taken back.
    void lose() { possible_ = false; }
    /// Keeps nothing of what was there before; it cannot be taken back then.
    void forget();

    /// Whether all of it can be.
    bool possible() const { return possible_; }
    /// Whether the first write to the key found this there; nullptr: nothing.
    bool began_with(PyObject* dict, PyObject* key, PyObject* value) const;
    /// How often it keeps this as what a `grad` was.
    Py_ssize_t holds_gradient(PyObject* gradient) const;
    /// Gives everything its value before the recording, newest write first; zeros to gradients
    /// whose memory has been given back (dropped_gradients.h).
    void take_back();
    /// Only what was written to `grad`s behind the first so many calls: the next one has raised.
    void take_back_gradients(std::size_t calls_made) const;
    /// What `grad`s were before writes that are no values from before the recording: to be filled
    /// before they are put back.
    std::vector<at::Tensor> promised_gradients() const;

  private:
    struct Before {
        enum class Kind : std::uint8_t { Key, Cell, Member, Gradient, Contents } kind;
        // The value: none if there was none. The name of the contents of an OrderedDict: its order.
        Ref object, name, value;
        at::Tensor promise{};           // a gradient's value instead; no Python object holds it
        std::size_t calls = 0;          // a gradient: recorded before the write
        std::optional<SetImage> set{};  // contents, of a set
    };
    struct PairHash {
        std::size_t operator()(const std::pair<PyObject*, PyObject*>& p) const {
            return std::hash<const void*>()(p.first) * 31 + std::hash<const void*>()(p.second);
        }
    };
    static bool put_back(const Before& before);

    bool possible_ = true;
    std::vector<Before> before_;
    std::vector<IteratorPlace> moved_;
    std::unordered_set<std::pair<PyObject*, PyObject*>, PairHash> noted_;
    std::unordered_set<PyObject*> copied_;
};

}  // namespace ingot::capture
