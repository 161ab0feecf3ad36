"""Every program of the table, compiled, does what it does eagerly."""

import importlib
import pkgutil

import pytest
import torch

import ingot
from capture import programs
from capture.harness import PROGRAMS, Difference, Tensor, compare, difference

for found in pkgutil.iter_modules(programs.__path__):
    importlib.import_module(f"capture.programs.{found.name}")

# What TorchDynamo gets wrong (seen with PyTorch 2.13; all but async and exec with "eager" or
# "aot_eager" as well).
WRONG_UNDER_DYNAMO = {
    "asked.places_and_lengths": "an internal error",
    "asked.numbers_and_texts": "an internal error",
    "asked.sums_and_orders": "views of results lose their base",
    "assumptions.categories_are_drawn_and_looked_up": "a check is not made",
    "assumptions.distributions_check_what_they_are_given": "a check is not made",
    "checkpoints.layers_one_by_one": "other gradients where random numbers are drawn",
    "checkpoints.one_within_another": "other gradients where random numbers are drawn",
    "checkpoints.statistics_are_taken_twice": "they are taken once",
    "checkpoints.what_is_given_changes_before_the_backward": "a change is not seen",
    "checkpoints.contexts_of_its_own": "an error",
    "checkpoints.the_reentrant_form_has_a_meaning_of_its_own": "results without a gradient",
    "checkpoints.errors_within": "another class of an operator's error",
    "checkpoints.whole_steps": "other gradients where random numbers are drawn",
    "iterators.iterators_and_operators_that_fail": "an operator's error cannot be caught",
    "transforms.transforms_that_raise": "another class and message of an error within vmap",
    "transforms.compiled_functions_of_dual_tensors": "the tangent is lost",
    "breaks.arguments_that_are_arrays": "a NumPy scalar comes back as an array",
    "breaks.integers_that_change": "another class and message of an operator's error",
    "backwards.a_graph_that_keeps_nothing_may_go_again": "a second backward is refused",
    "own_functions.double_backwards_through_breaks": "a double backward is refused",
    "breaks.tensors_that_are_places": "another class of an operator's error",
    "classes.a_class_attribute_is_changed": "a changed class attribute is not seen",
    "classes.iterators_of_ones_own": "an internal error",
    "modules.hooks_on_gradients_of_modules": "a hook that is added later is not seen",
    "backwards.views_without_a_history_whose_base_is_written_to": "an internal error",
    "backwards.gradients_that_are_cleared_around_an_operator_that_fails": "gradients that were set",
    "backwards.backwards_into_inputs_of_changing_sizes": "the gradient of an input is lost",
    "finalizers.objects_that_wait_for_the_collector": "a finalizer is not run",
    "finalizers.what_a_call_has_read_is_not_kept": "a finalizer runs late",
    "finalizers.objects_that_go_in_the_call": "a finalizer runs late",
    "tensors.copies_between_inputs_that_overlap": "another class of an operator's error",
    "containers.sorting_and_reductions": "max of nothing raises another error",
    "containers.an_outside_deque_is_a_window": "a deque's maxlen is forgotten",
    "containers.the_order_of_an_ordered_dict_changes": "another order is not seen",
    "containers.containers_from_outside_are_rearranged_inside": "what a method changed is lost",
    "containers.order_of_equal_sets": "equal sets with another order are taken for the same",
    "tensors.data_has_a_version_of_its_own": "a change of `data` counts as one of the tensor",
    "numbers.floats_as_arguments": "arithmetic on floats raises",
    "numbers.floats_become_something_else": "a float as text comes back as a float",
    "numbers.floats_that_raise": "another class of an error of arithmetic",
    "numbers.numbers_change_kind": "a comparison of integers comes back as a SymBool",
    "optimizers.two_tensors_become_one": "two tensors that become one are still taken for two",
    "control.context_managers": "what __enter__ and __exit__ changed is lost",
    "exceptions.errors_of_operators": "another class and message of an operator's error",
    "exceptions.errors_of_operators_caught_inside": "an operator's error cannot be caught",
    "exceptions.data_that_operators_refuse": "an operator's error cannot be caught",
    "exceptions.data_that_operators_refuse_at_once": "an operator's error cannot be caught",
    "exceptions.tried_until_it_succeeds": "an operator's error cannot be caught",
    "exceptions.types_that_operators_refuse": "another class of an operator's error",
    "exceptions.writes_to_what_was_expanded": "what is done before an operator's error is lost",
    "exceptions.index_errors": "another message of an operator's error",
    "exceptions.attributes_that_are_set_before_an_operator_fails": "the error cannot be caught",
    "exceptions.sets_that_change_before_an_operator_fails_keep_their_order": "no error is caught",
    "exceptions.context_managers_see_exceptions": "what __exit__ changed is lost",
    "exceptions.suppressed_and_recovered": "an operator's error cannot be suppressed",
    "functions.async_functions": "the process has died here or in the next program, seldom",
    "functions.eval_and_exec": "the process has died here, seldom",
    "functions.caches": "functools.lru_cache is passed over",
    "functions.closure_changed_from_outside": "another class of an operator's error",
    "functions.frames_are_looked_at": "frames have other names",
    "functions.locals_and_frames": "frames have other names",
    "gradients.in_place_on_a_leaf_is_an_error": "another class and message of the error",
    "gradients.straight_through": "an assertion fails in the middle",
    "modules.forward_hooks": "a hook that is added later is not seen",
    "modules.lazy_layers": "random numbers are drawn twice",
    "outside.classes_registered_with_an_abstract_base_class_later": "a registration is not seen",
    "outside.bound_methods_come_in_and_lead_to_others": "what another method computes",
    "outside.functions_of_numpy_over_plain_numbers": "tensors are of another type",
    "outside.counters_and_deques": "a Counter from outside counts wrong",
    "outside.devices_and_numbers_with_classes": "an internal error",
    "outside.numbers_of_numpy_are_values": "a NumPy scalar comes back as an array",
    "own_functions.a_backward_of_another_number_or_shape": "another message, or no error",
    "own_functions.a_backward_that_is_not_linear": "a missing gradient becomes zeros",
    "own_functions.a_global_changes_before_the_backward": "its change is not seen by the backward",
    "own_functions.custom_operators_over_lists": "what a backward prints is printed once more",
    "own_functions.differentiable_once": "another message",
    "own_functions.double_backwards": "wrong gradients of gradients, or an error",
    "own_functions.gradients_that_are_not_made": "another gradient",
    "own_functions.modes_are_read": "a backward reads other modes",
    "own_functions.sizes_change": "another result once sizes have changed",
    "own_functions.what_a_function_saved_and_never_reads_changes": "a change is not noticed",
    "own_functions.what_a_function_saved_changes": "a change of what was saved is not noticed",
    "sizes.broadcasts_of_changing_sizes": "another class of an operator's error",
    "sizes.products_of_changing_sizes": "another class of an operator's error",
    "tensors.ranks_and_types_change": "another class and message of an operator's error",
    "identities.objects_that_become_one": "two objects that become one are still taken for two",
    "identities.containers_that_become_one": "two containers that become one likewise",
    "identities.an_argument_becomes_a_global_object": "an argument and a global likewise",
    "identities.objects_that_become_one_behind_a_break": "behind a break likewise",
    "identities.instance_dictionaries_that_become_one": "instance dictionaries likewise",
    "identities.keys_that_come_back_go_to_the_end": "keys keep their old places",
    "identities.what_is_deleted_may_be_missing": "a missing attribute is not noticed",
    "c_objects.results_that_are_forgotten": "functools.lru_cache is passed over",
    "c_objects.results_that_are_pushed_out": "functools.lru_cache is passed over",
    "c_objects.calls_are_counted": "functools.lru_cache is passed over",
    "c_objects.tensors_and_lists_that_are_kept": "functools.lru_cache is passed over",
    "c_objects.methods_that_keep_their_results": "functools.lru_cache is passed over",
    "c_objects.a_cached_function_that_raises": "functools.lru_cache is passed over",
    "c_objects.a_window_of_tensors": "a deque's maxlen is forgotten",
    "c_objects.a_module_that_keeps_numbers": "a deque's maxlen is forgotten",
    "c_objects.deques_that_come_in": "a deque's maxlen is forgotten",
    "c_objects.locals_of_threads": "what is stored in a threading.local is lost",
    "c_objects.classes_of_locals_of_threads": "what is stored in a threading.local is lost",
    "backwards.operators_that_fail_beside_a_backward": "another class of an operator's error",
    "classes.names_are_set": "a changed name is not seen",
    "classes.special_methods_are_set": "a changed special method is not seen",
    "exceptions.operators_that_nobody_reads": "an operator's error cannot be caught",
    "exceptions.operators_that_nobody_reads_before_a_backward": "gradients before an error differ",
    "exceptions.what_was_written_before_an_operator_fails": "an index out of range is not noticed",
    "exceptions.errors_of_sizes_within_c_code": "another class of an operator's error",
    "tensors.types_of_autocast_where_it_is_off": "a changed type of autocast is not seen",
    "tensors.indices_that_count_from_the_end": "another message of an operator's error",
    "everyday.meters_and_logs": "an internal error",
    "everyday.modules_made_and_changed_in_the_call": "a module made inside draws again",
    "everyday.comparisons_sorts_and_truths": "objects that are equal stay two keys",
    "finalizers.members_of_slots_that_are_replaced": "a finalizer runs late",
    "finalizers.containers_of_objects_with_finalizers_are_changed": "a finalizer runs late",
    "finalizers.tuples_and_closures_with_finalizers_are_replaced": "a finalizer runs late",
    "finalizers.what_is_read_and_then_replaced": "a finalizer runs late",
    "habits.arguments_of_every_kind": "keyword arguments in another order",
    "habits.async_generators": "another result",
    "habits.lazy_and_normed_layers": "random numbers are drawn twice",
    "habits.numbers_at_their_edges": "-0.0 becomes 0.0",
    "habits.tensors_with_attributes_of_their_own": "attributes of tensors",
    "habits.tools_of_itertools": "another class of an operator's error",
    "habits.walrus_in_comprehensions": "another class of an error",
    "habits.weights_that_are_tied_and_untied": "tensors that become one are still taken for two",
    "ordered.ordered_dicts_that_change_before_an_operator_fails": "an error cannot be caught",
    "ordered.ordered_dicts_that_have_been_rearranged_outside": "another order",
    "ordered.ordered_dicts_that_methods_change": "another order",
    "ordered.ordered_dicts_with_methods_of_their_own": "another order",
    "unseen.functions_that_classes_have_under_other_names": "changed code is not seen",
    "unseen.caches_that_c_code_calls": "functools.lru_cache is passed over",
    "unseen.numbers_that_change_in_what_c_code_makes": "a comparison comes back as a SymBool",
    "unseen.objects_that_are_found_or_not": "an object is found where it is not",
    "unseen.special_methods_that_c_code_calls": "an internal error",
    "unseen.tuples_that_are_keys": "an internal error",
    "unseen.values_that_c_code_makes_of_what_comes_in": "an internal error",
}


def test_the_table_is_long_enough():
    assert len(PROGRAMS) >= 150
    assert set(WRONG_UNDER_DYNAMO) <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    compare(PROGRAMS[name], ingot.compile)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_captured_by_torch_dynamo(name, monkeypatch):
    if name in WRONG_UNDER_DYNAMO:
        pytest.skip(f"TorchDynamo: {WRONG_UNDER_DYNAMO[name]}")
    monkeypatch.setenv("INGOT_CAPTURE", "dynamo")
    compare(PROGRAMS[name], ingot.compile)


# The judge is judged: each of these compilers does one thing wrong, and it is found.


def one_program(w):
    log = []
    keep = w.t(3)

    def f(x):
        log.append(x.shape[0])
        x[0] = 5.0
        print("called")
        y = x * 2
        return {"y": y, "alias": y[:], "scale": 2.0, "keep": keep}

    f = w.compile(f)
    w.call(f, w.t(3))
    w.note(log)
    w.call(f, "text")


def wrong(change):
    return lambda f, **_: lambda *args: change(f, *args)


def change_result(key, new):
    def change(f, *args):
        result = f(*args)
        result[key] = new(result)
        return result

    return change


def lose_an_effect(f, x):
    before = x.clone()
    result = f(x)
    x.copy_(before)
    return result


def raise_another(f, x):
    try:
        return f(x)
    except AttributeError:
        raise AttributeError("something else") from None


def call_twice(f, x):
    f(x)
    return f(x)


def draw(f, x):
    torch.rand(1)
    return f(x)


def leave_grad_off(f, x):
    torch.set_grad_enabled(False)
    return f(x)


@pytest.mark.parametrize(
    "change",
    [
        change_result("y", lambda r: r["y"] * 1.01),
        change_result("y", lambda r: r["y"].double()),
        change_result("y", lambda r: r["y"].detach().requires_grad_()),
        change_result("y", lambda r: r["y"].repeat(2)[::2][:3]),
        change_result("alias", lambda r: r["alias"].clone()),
        change_result("alias", lambda r: r["y"]),
        change_result("keep", lambda r: r["keep"].clone() + 0.5),
        change_result("scale", lambda r: 2),
        change_result("scale", lambda r: 2.1),
        change_result("new", lambda r: None),
        lose_an_effect,
        raise_another,
        call_twice,
        draw,
        leave_grad_off,
    ],
)
def test_the_judge_finds_what_is_wrong(change):
    compare(one_program, wrong(lambda f, *args: f(*args)))
    with pytest.raises(Difference):
        compare(one_program, wrong(change))


def test_numbers_may_differ_by_rounding_only():
    assert difference(1.0, 1.0 + 1e-7) is None
    assert difference(float("nan"), float("nan")) is None
    assert difference(1.0, 1) is not None
    assert difference(1.0, 1.001) is not None
    one = Tensor(torch.tensor([1.0]), ())
    assert difference(one, Tensor(torch.tensor([1.0 + 1e-6]), ())) is None
    assert difference(one, Tensor(torch.tensor([1.01]), ())) is not None


def test_two_eager_worlds_are_equal():
    for name in list(PROGRAMS)[::10]:
        compare(PROGRAMS[name], lambda f, **_: f)
