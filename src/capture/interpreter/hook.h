// The PEP 523 hook: set in the interpreter while somebody needs it, counted.
#pragma once
#include "capture/interpreter/cpython.h"
#include "capture/interpreter/dynamo_hook.h"

namespace ingot::capture {

/// Takes over the next frame of its kind that CPython makes in this thread.
class FrameTaker {
  public:
    virtual ~FrameTaker() = default;
    virtual bool takes(_PyInterpreterFrame* frame) = 0;
    virtual PyObject* run(PyThreadState* thread, _PyInterpreterFrame* frame) = 0;
};

/// While one lives, CPython asks the hook to execute each frame.
class FrameHook {
  public:
    FrameHook();
    ~FrameHook();
    FrameHook(const FrameHook&) = delete;
    FrameHook& operator=(const FrameHook&) = delete;
    /// nullptr: no longer.
    static void wait_for(FrameTaker* taker);

  private:
    static PyObject* run(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown);
    static PyObject* pass_on(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown);
    static void uninstall(PyInterpreterState* interpreter);

    DynamoHook dynamo_;
};

}  // namespace ingot::capture
