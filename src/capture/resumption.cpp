// See resumption.h.
#include "capture/resumption.h"

#include <utility>
#include <vector>

namespace ingot::capture {
namespace {

std::vector<FrameImage> images_of(const BreakPoint& at, std::span<PyObject* const> slots) {
    std::vector<FrameImage> images;
    std::size_t n = 0;
    for (const FrameShape& shape : at.frames) {
        FrameImage image;
        image.function = reinterpret_cast<PyFunctionObject*>(Py_NewRef(slots[n++]));
        image.offset = shape.offset;
        image.resume = shape.resume;
        for (std::size_t i = 0; i < shape.slots; ++i) image.slots.push_back(Py_XNewRef(slots[n++]));
        for (std::size_t i = 0; i < shape.stack; ++i) image.stack.push_back(Py_XNewRef(slots[n++]));
        images.push_back(std::move(image));
    }
    return images;
}

}  // namespace

PyObject* resume(const BreakPoint& at, std::span<PyObject* const> slots, PyObject* result) {
    if (at.frames.back().resume == Resume::execute) {
        Py_XDECREF(result);
        PyErr_Clear();
        result = nullptr;
    }
    return run_frames(images_of(at, slots), result);
}

PyObject* resume_before(const BreakPoint& at, std::span<PyObject* const> slots) {
    return run_frames(images_of(at, slots), nullptr);
}

}  // namespace ingot::capture
