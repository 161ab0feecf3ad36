// Launches of one kernel over different memory become one launch: the states of an optimizer's
// parameters of one shape, the second stages of a backward's sums. On a GPU a small kernel takes
// longer to start than to run.
//
// Steps move for it, past others that touch none of their memory; later only where little memory
// has to wait. Stands behind the order of steps and before their memory is planned. Linear in the
// steps, up to a bound on how far one may move.
#pragma once
#include "schedule/plan.h"

namespace ingot::sched {

void batch_launches(Plan& plan);

}  // namespace ingot::sched
