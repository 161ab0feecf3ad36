// NumPy's functions of plain numbers (`np.log(3.0)`, as models use them for constants).
#pragma once
#include <span>

#include "capture/ref.h"

namespace ingot::capture {

/// What the universal function `callable` of NumPy itself gives for these arguments, if it is a
/// function of them alone: plain numbers, and a float that no setting of `np.errstate` lets it warn
/// about. None otherwise, without an exception; it can be called again then.
Ref number_of_numpy(PyObject* callable, std::span<PyObject* const> arguments);

}  // namespace ingot::capture
