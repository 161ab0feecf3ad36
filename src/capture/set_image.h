// What a set holds, place by place, to be put back exactly.
//
// The order in which a set gives its members follows from the places that they have in its table,
// and these from when each came and what was removed before: a set that is filled again with the
// same members may give them, and lose them by `pop`, in another order. No function of CPython
// keeps that, so the table itself is copied (its layout is public, the same in 3.11 and 3.12), with
// what removed members have left. Members are asked for nothing, neither hash nor equality.
//
// Costs 16 bytes and a reference a place. Below Undo.
#pragma once
#include <Python.h>

#include <vector>

namespace ingot::capture {

class SetImage {
  public:
    /// Of a set or an object of a class derived from it.
    explicit SetImage(PyObject* set);
    ~SetImage();
    SetImage(SetImage&& other) noexcept;
    SetImage& operator=(SetImage&& other) noexcept;
    SetImage(const SetImage&) = delete;
    SetImage& operator=(const SetImage&) = delete;

    /// Gives the set, the same one as before, what the image holds. False, with the set as it is,
    /// where there is no memory; sets no exception.
    bool restore(PyObject* set) const;

  private:
    std::vector<setentry> places_;
    Py_ssize_t fill_ = 0, used_ = 0, finger_ = 0;
};

}  // namespace ingot::capture
