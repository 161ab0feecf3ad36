// Capture: Python functions recorded as they run, and replayed without Python.
//
// This is the border that the package and the bindings see. In Python:
//
//   _ingot.capture(function, options={}) -> Captured
//       `function`: any callable (a function, a bound method, a module's `forward` or the module).
//       options (every key optional):
//         name: str               what messages call it
//         place: str              its 'file:line', for messages
//         fullgraph: bool         a break raises Unsupported with the reason and the user's line
//         dynamic: None|bool      numbers that change: symbolic from the second time / at once / no
//         recompile_limit: int    recordings kept (8); past it calls run eagerly, said in one line
//         settings: dict          the switches of _options.resolve(), for the compiler
//         backend: callable       None: Ingot. Otherwise called once a graph with
//                                 (calls, examples, outputs, sizes, shapes): see below
//         reproduce: callable     called with (reason and the same five) of a recording
//                                 that could not be compiled, and with None for a reason before
//                                 any is compiled under settings["debug"]
//
//   A Captured is called like `function` (vectorcall; it binds as a method; it has a __dict__,
//   weak references and takes part in garbage collection). Never raises what eager would not,
//   except under fullgraph or the stance fail_on_recompile. Its attributes:
//         function                what was given
//         counters() -> dict      calls, replays, recordings, eager_calls, guard_failures, breaks,
//                                 graphs, training (graphs with a backward), operators,
//                                 record_seconds, compile_seconds
//         explain() -> list       one dict a segment, oldest first: kind ('graph'|'eager'), end
//                                 ('return'|'break'|'raise'), reason (of a break or of running
//                                 eagerly), line ('file:line in function'), operators (list of
//                                 names), inputs, outputs, guards (list of sentences), children,
//                                 stack (such lines, outermost frame first), report (kernels,
//                                 externs, seconds)
//         last_failure            the sentence of the last failed guard, or None
//         reset()                 forgets all recordings
//
//   A backend is called with `calls`: a list of (name, arguments, results), name as in
//   'aten::add.Tensor', arguments and results with tensors as `_ingot.Value(index)`; `examples`: a
//   dict from Value index to what comes in, a real tensor or a float, which a call gives as a 0-dim
//   tensor of doubles and which counts as a number among arguments; `outputs`: a list of indices.
//   The call 'ingot::set_grad_enabled' switches grad mode within the log, 'ingot::apply' is a
//   custom autograd.Function: its arguments are the class and the list of what it is applied to.
//   `sizes`: a dict from the names of symbolic integers to the example's numbers,
//   `_ingot.Size(text)` an argument computed from them; `shapes`: of each tensor that comes in None
//   or its sizes and strides, integers or texts. It returns a callable that takes the numbers of
//   `sizes` and the tensors of `examples`, in order, and gives those of `outputs`. Where it has an
//   attribute `serves`, that is asked first whether it is valid for such numbers and floats;
//   `fixes` names sizes of which it takes one number only, `fixes_floats` has such floats' places
//   among the examples. If it raises, sizes and floats are numbers from the next recording on.
//
//   _ingot.capture_counters() -> dict    the counters of all Captured together, and `reasons`: a
//                                        dict from one-line reason to how often
//   _ingot.capture_reset()               forgets the recordings of every Captured
//   _ingot.capture_forget()              the same, and the counters go on
//   _ingot.capture_controls(stances, flags, allowed, follow, settings)
//                                        where PyTorch's own controls are, from when the program
//                                        has loaded TorchDynamo: TorchControls in state.h
//   _ingot.capture_mark(callable, kind)  kind 'disable' (a call of it runs with capture off, behind
//                                        a break), 'disable_once' (that frame alone is not
//                                        recorded, what it calls is), 'break' (calling it only
//                                        breaks), 'allow' (runs for real and is assumed to be pure
//                                        but for its operators), 'constant' (its result is assumed
//                                        to be constant), 'true' (recorded calls of it give True),
//                                        'wide' (they give their argument, a tensor as doubles),
//                                        'true_for_programs' (so, but not to PyTorch's own code),
//                                        None (no mark)
//   _ingot.capture_stance(name) -> str   sets default | force_eager | eager_on_recompile |
//                                        fail_on_recompile | eager_then_compile; gives the old one
//   _ingot.is_recording() -> bool        whether this thread records just now
//
// Cost: a call whose guards hold pays some ten nanoseconds a changed object and one or two a
// container that did not change; see docs/capture.md.
#pragma once
#include <Python.h>

namespace ingot::capture {

/// Adds the types and functions above to the module `_ingot`; false with a Python error set.
bool add_to_module(PyObject* module);

/// From now on it is noted where a program takes or sets `data` of a tensor, or takes its memory
/// otherwise (trace/silent_changes.h); false with a Python error set.
bool watch_data();

}  // namespace ingot::capture
