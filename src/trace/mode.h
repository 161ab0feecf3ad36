// The dispatch mode: how operators reach a recorder without Python.
//
// PyTorch's dispatcher hands every operator below autograd and autocast to the topmost entry of the
// thread's mode stack, through the PyInterpreter that entry carries. Ours is a vtable in C++ whose
// "Python object" is the RecorderState itself. Nothing may convert that entry to a PyObject.
#pragma once
#include <c10/core/impl/PyInterpreter.h>

namespace ingot::trace {

class RecorderState;

/// Pushes the recorder onto this thread's mode stack.
void push_mode(RecorderState& recorder);
/// Removes the topmost mode, which must be the one pushed last.
void pop_mode();
/// The recorder on top of this thread's mode stack; nullptr: there is none, or another mode is.
RecorderState* topmost_recorder();

/// While in scope, composite operators come to composite.h first.
class OwnComposites {
  public:
    OwnComposites();
    ~OwnComposites();
    OwnComposites(const OwnComposites&) = delete;
    OwnComposites& operator=(const OwnComposites&) = delete;

  private:
    c10::impl::PyInterpreter* before_;
};

/// Takes the topmost mode off while in scope, for calls that may look at the mode stack.
class WithoutMode {
  public:
    explicit WithoutMode(RecorderState& recorder) : recorder_(recorder) { pop_mode(); }
    ~WithoutMode() { push_mode(recorder_); }
    WithoutMode(const WithoutMode&) = delete;
    WithoutMode& operator=(const WithoutMode&) = delete;

  private:
    RecorderState& recorder_;
};

}  // namespace ingot::trace
