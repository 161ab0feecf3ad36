// Gradients that a step sets to None before it computes anything.
//
// Eager frees them there, ahead of the forward. A recording, and the guards of a replay, hold them,
// and effects are carried out behind the program: without this the gradients of the step before
// would live beside the new ones, as much memory again as the parameters. What nobody else holds
// and the segment does not read gives its memory back before the program runs. If it then does not
// run to its end, they are put back, with zeros: eager goes on from the segment's beginning, where
// it may ask whether there is a gradient, and sets it to None before any operator could read it.
//
// Costs a few comparisons a gradient and call. Found when a segment's graph ends (graph_end.h),
// dropped by recordings and replays right before the program.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "capture/segment.h"
#include "capture/world.h"

namespace ingot::capture {

/// Of those that are set to None, the ones whose contents the segment never needs. Its inputs and
/// recipes must be there.
std::vector<ClearedGradient> find_dropped(std::span<const ClearedGradient> cleared,
                                          const Segment& segment);

/// Frees the memory of a gradient that only a recording still holds, so many times.
void drop_recorded(PyObject* gradient, Py_ssize_t holders);
/// Gives zeros to a gradient whose memory was freed.
void fill_dropped(const at::Tensor& gradient);

/// What one replay has dropped.
class DroppedGradients {
  public:
    DroppedGradients(std::span<const ClearedGradient> dropped, const Values& values,
                     const GuardSet& guards);
    DroppedGradients(const DroppedGradients&) = delete;
    DroppedGradients& operator=(const DroppedGradients&) = delete;
    /// Puts them back unless the program has run.
    ~DroppedGradients();
    void program_has_run() { dropped_.clear(); }

  private:
    struct Dropped {
        at::Tensor leaf, gradient;
    };
    std::vector<Dropped> dropped_;
};

}  // namespace ingot::capture
