// TorchDynamo's hook beside ours. It has one in the interpreter while a thread has it switched on,
// puts it over whatever it finds each time a thread does so, and, when the last thread is done,
// puts what it once found back, also over a hook that came in the meantime. So while a `FrameHook`
// lives, TorchDynamo is counted as switched on: its hook stays where it is, above ours, and nothing
// takes ours away in the midst of a session, whatever other threads do. In this thread it is off
// meanwhile: the session's frames are nobody else's.
//
// Without PyTorch, or where its functions are not as known here, nothing is done. Costs five calls
// of C functions a session.
#pragma once
#include <Python.h>

namespace ingot::capture {

class DynamoHook {
  public:
    DynamoHook() = default;
    DynamoHook(const DynamoHook&) = delete;
    DynamoHook& operator=(const DynamoHook&) = delete;

    /// Keeps TorchDynamo's hook in place, and off in this thread.
    void hold();
    /// As it was before `hold`; by the same thread.
    void release();

  private:
    PyObject* before_ = nullptr;  // what this thread had switched on; nullptr: not held
};

}  // namespace ingot::capture
