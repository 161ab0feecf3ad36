"""Exceptions: raised, caught, chained, re-raised, in finally, out of operators, with state kept."""

import contextlib
import itertools
import warnings

import torch
import torch.nn.functional as F

from capture.harness import program


class Custom(Exception):
    def __init__(self, message, code):
        super().__init__(message, code)
        self.code = code


@program
def raised_to_the_caller(w):
    def f(x, n):
        y = x * 2
        if n > 1:
            raise Custom(f"n is {n}", n)
        return y

    f = w.compile(f)
    for n in (1, 2, 3, 1, 2):
        w.call(f, w.t(2), n)


@program
def raised_and_caught_inside(w):
    def risky(x, n):
        if n == 0:
            raise ValueError("zero")
        if n == 1:
            raise KeyError("one")
        return x / n

    def f(x, n):
        try:
            y = risky(x, n)
        except ValueError as error:
            return x, str(error)
        except (KeyError, IndexError) as error:
            y = x * 3
            text = repr(error)
        else:
            text = "fine"
        finally:
            x = x + 1
        return y + x, text

    f = w.compile(f)
    for n in (0, 1, 2, 0, 1):
        w.call(f, w.t(2), n)


@program
def chained_and_reraised(w):
    def f(x, how):
        try:
            try:
                raise ValueError("inner")
            except ValueError as error:
                if how == "from":
                    raise RuntimeError("outer") from error
                if how == "none":
                    raise RuntimeError("outer") from None
                if how == "again":
                    raise
                raise TypeError("implicit")
        except Exception as error:
            cause = type(error.__cause__).__name__
            context = type(error.__context__).__name__
            return x * 2, type(error).__name__, cause, context, error.__suppress_context__

    f = w.compile(f)
    for how in ("from", "none", "again", "other", "from"):
        w.call(f, w.t(2), how)


@program
def finally_overrides(w):
    def f(x, n):
        for _ in range(3):
            try:
                if n == 0:
                    raise ValueError("lost")
                if n == 1:
                    continue
                x = x + 1
            finally:
                x = x * 2
                if n == 0:
                    break
        return x

    f = w.compile(f)
    for n in (0, 1, 2, 0):
        w.call(f, w.t(2), n)


@program
def errors_of_operators(w):
    def f(x, y):
        return x @ y + 1

    f = w.compile(f)
    w.call(f, w.t(2, 3), w.t(3, 2))
    w.call(f, w.t(2, 3), w.t(2, 3))
    w.call(f, w.t(2, 3), "text")
    w.call(f, w.t(2, 3), w.t(3, 2))


@program
def errors_of_operators_caught_inside(w):
    def f(x, y):
        try:
            return x + y, "added"
        except RuntimeError as error:
            return x, str(error).split("(")[0]

    f = w.compile(f)
    for n in (2, 3, 2, 3):
        w.call(f, w.t(2), w.t(n))


@program
def index_errors(w):
    def f(x, k, values):
        return x[k] * values[k]

    f = w.compile(f)
    for k in (0, 1, 5, -1, -7, 0):
        w.call(f, w.t(3), k, [1, 2, 3])


@program
def state_before_an_exception_is_kept(w):
    log = []

    def f(x, fail):
        log.append("start")
        x.add_(1)
        if fail:
            raise ValueError("after the change")
        log.append("end")
        return x

    f = w.compile(f)
    for fail in (False, True, False, True):
        w.call(f, w.t(2), fail)
        w.note(log)


@program
def an_exception_with_tensors(w):
    class Found(Exception):
        pass

    def search(xs):
        for k, x in enumerate(xs):
            if k == 2:
                raise Found(x * 2, k)

    def f(xs):
        try:
            search(xs)
        except Found as found:
            value, k = found.args
            return value + k
        return None

    f = w.compile(f)
    for n in (4, 4, 1):
        w.call(f, [w.t(2) for _ in range(n)])


@program
def an_exception_that_depends_on_data(w):
    def f(x):
        y = x * 2
        if (y < 0).any():
            raise ValueError("negative")
        return y.sqrt()

    f = w.compile(f)
    for sign in (1, -1, 1, -1):
        w.call(f, w.t(3).abs() * sign)


@program
def stop_iteration_and_generator_exit(w):
    log = []

    def numbers():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            log.append("closed")
            raise
        finally:
            log.append("end")

    def f(x):
        it = numbers()
        first = next(it)
        it.close()
        other = numbers()
        list(other)
        try:
            next(other)
        except StopIteration as stop:
            return x * first, stop.value

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
        w.note(log)


@program
def throwing_into_a_generator(w):
    def numbers():
        k = 0
        while True:
            try:
                k += yield k
            except ValueError:
                k = 100

    def f(x):
        it = numbers()
        next(it)
        a = it.send(5)
        b = it.throw(ValueError("reset"))
        return x + a, b

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def exception_groups(w):
    def f(x, which):
        seen = []
        try:
            raise ExceptionGroup("many", [ValueError("a"), KeyError("b"), *which])
        except* ValueError as group:
            seen.append(len(group.exceptions))
        except* KeyError as group:
            seen.append(group.message)
        return x * len(seen), seen

    f = w.compile(f)
    w.call(f, w.t(2), [])
    w.call(f, w.t(2), [ValueError("c")])
    w.call(f, w.t(2), [TypeError("left")])


@program
def warnings_are_given(w):
    def f(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x * 2

    f = w.compile(f)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            w.call(f, w.t(2))
        w.note([str(one.message) for one in caught if one.category is UserWarning])


@program
def context_managers_see_exceptions(w):
    seen = []

    class Guard:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, trace):
            seen.append((kind.__name__, str(value)) if kind else None)
            return kind is ValueError

    def f(x, n):
        with Guard():
            x = x + 1
            if n == 1:
                raise ValueError("eaten")
            if n == 2:
                raise TypeError("passed on")
        return x * 2

    f = w.compile(f)
    for n in (0, 1, 2, 0, 1):
        w.call(f, w.t(2), n)
        w.note(seen)


@program
def attribute_and_type_errors(w):
    def f(x, what):
        if what == "attribute":
            return x.surely_missing
        if what == "call":
            return x(1)
        if what == "none":
            return None + x
        if what == "unpack":
            a, b = (x,)
        if what == "keyword":
            return torch.add(x, 1, gamma=2)
        return x + 1

    f = w.compile(f)
    for what in ("attribute", "call", "none", "unpack", "keyword", "fine", "attribute"):
        w.call(f, w.t(2), what)


@program
def keyboard_interrupts_pass(w):
    def f(x, stop):
        try:
            if stop:
                raise KeyboardInterrupt("now")
        except Exception:
            return "caught"
        return x * 2

    f = w.compile(f)
    for stop in (False, True, False):
        try:
            w.call(f, w.t(2), stop)
        except KeyboardInterrupt as error:
            w.note(str(error))


@program
def suppressed_and_recovered(w):
    def f(x, values):
        out = []
        for value in values:
            with contextlib.suppress(TypeError, ZeroDivisionError):
                out.append(x * (1 / value))
        return out

    f = w.compile(f)
    for values in ([1, 0, 2], [1, "a", 2], [0], [1, 0, 2]):
        w.call(f, w.t(2), values)


@program
def writes_to_what_was_expanded(w):
    def at_once(x, items):
        items.insert(0, x * 2)
        y = x.sum(0, keepdim=True).expand(6)
        y[1:3].mul_(0.5)
        return y

    def behind_a_break(x, items):
        y = x.sum(0, keepdim=True).expand(6)
        for one in list(items):
            print(one, y.shape)
            y[1:3].mul_(0.5)
        return y

    def caught(x, items):
        y = x[:1].expand(3)
        print(y.shape)
        items.append(y * 2)
        try:
            y.add_(1)
        except RuntimeError as error:
            items.append(str(error))
        x.mul_(2)
        return x, y

    def given(y, items):
        y[1:2].mul_(3)  # one element, which all are
        items.append(y + 1)
        y.add_(1)

    for function in (at_once, behind_a_break, caught):
        f = w.compile(function)
        for items in ([], [1], [1, 2]):
            w.call(f, w.t(6), items)
    f = w.compile(given)
    for n in (3, 3, 1):
        w.call(f, w.t(1).expand(n), [])


@program
def types_that_operators_refuse(w):
    def f(x, log):
        x.add_(1)
        log.append("before")
        try:
            y = (x > 0).abs()
            log.append("behind")
        except Exception as error:
            log.append((type(error).__name__, str(error)))
            y = x.neg()
        print(len(log))
        return y, (x > 0).neg()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3), [])


@program
def data_that_operators_refuse(w):
    table = w.t(4, 3)

    def looked_up(x, k, log):
        log.append("before")
        x.add_(1)
        try:
            y = table[k]
            log.append("read")
        except IndexError as error:
            log.append(str(error).split(":")[0])
            return x * 3
        finally:
            log.append("end")
        x.mul_(2)
        return x + y

    def behind_a_break(x, k, log):
        print(len(log))
        return looked_up(x, k, log)

    def inverted(x, y, log):
        y.mul_(2)
        try:
            log.append(torch.linalg.inv(x))
        except RuntimeError as error:
            log.append(str(error))
        y.add_(1)
        return y

    f, g, h = w.compile(looked_up), w.compile(behind_a_break), w.compile(inverted)
    for k in (1, 3, 7, 2, -9):
        for function in (f, g):
            log = []
            x = w.t(2, 3)
            w.call(function, x, torch.tensor([0, k]), log)
    for scale in (1, 0, 1, 0):
        w.call(h, scale * (w.t(3, 3) + 4 * torch.eye(3)), w.t(2), [])


@program
def data_that_operators_refuse_at_once(w):
    table = w.t(4, 3)
    state = {"first": 1, "second": 2, "third": 3}
    made = []

    class Counter:
        __slots__ = ("count",)

    class Model:
        calls = 0

        def __init__(self):
            self.counter = Counter()
            self.counter.count = 0
            self.seen = []

        def look_up(self, k):
            self.calls += 1
            self.counter.count += 1
            self.seen.append(k)
            return torch.nn.functional.embedding(k, table)

    def caught(x, k, log):
        log.append("before")
        x.add_(1)
        try:
            y = table[k]
            log.append("read")
        except IndexError as error:
            log.append(str(error).split(":")[0])
            return x * 3
        finally:
            log.append("end")
        return x + y

    def caught_before_a_break(x, k, log):
        del state["first"]
        state["first"] = state["second"] = len(log)
        try:
            y = table[k] + x
            print(len(log))
            log.append(y.sum())
        except IndexError:
            log.insert(0, "caught")
            y = x
        state.pop("third", None)
        return y

    def caught_behind_a_break(x, k, log):
        values = [x * 2]
        for value in (1, 2):
            print(len(log), len(values))
            values.append(x.exp())
            log.append(value)
            try:
                x.mul_(2)
                values.append(table[k].sum())
            except IndexError:
                values.append("caught")
        return values

    def caught_by_a_caller(x, k, log):
        made.append(len(made))
        state["second"] = x.add_(1)
        log.append(table[k])
        made.append("behind")
        state["third"] = 4
        return x

    def without_gradients(x, k, log):
        try:
            with torch.no_grad():
                y = table[k]
                print(y.shape)
        except IndexError:
            log.append(torch.is_grad_enabled())
        return x + 1, torch.is_grad_enabled()

    def in_a_handler(x, k, log):
        try:
            raise ValueError("first")
        except ValueError:
            try:
                log.append(table[k] * 2)
                print("read")
            except IndexError as error:
                log.append(str(error.__context__))
        return x

    def in_a_method(x, k, log):
        try:
            return model.look_up(k) + x
        except IndexError:
            return model.calls, model.counter.count, x - 1

    def with_random_numbers(x, k, log):
        y = torch.nn.functional.dropout(x, 0.5) + torch.randn(3)
        try:
            log.append(table[k])
        except IndexError:
            log.append("caught")
        return y, torch.rand(2)

    def raised_behind_it(x, k, log):
        y = table[k]
        log.append(1)
        raise KeyError(len(log), y)

    functions = (
        caught,
        caught_before_a_break,
        caught_behind_a_break,
        caught_by_a_caller,
        without_gradients,
        in_a_handler,
        in_a_method,
        with_random_numbers,
        raised_behind_it,
    )
    for function in functions:
        f = w.compile(function)
        model = Model()
        state.update(first=1, third=3)
        for k in (7, 7, 1, 9, 2):
            log = []
            w.call(f, w.t(2, 3), torch.tensor([0, k]), log)
            w.note(log, list(state.items()), made, model.calls, model.seen, model.counter.count)


@program
def tried_until_it_succeeds(w):
    def f(x, log):
        jitter = 0.0
        while True:
            try:
                factor = torch.linalg.cholesky(x + jitter * torch.eye(3))
            except RuntimeError:
                jitter = 2 * jitter + 1
                log.append(jitter)
            else:
                return factor

    f = w.compile(f)
    for scale in (-1, -1, 1, -3, 1):
        w.call(f, scale * torch.eye(3), [])


# What nobody reads, or nobody reads as a whole, fails by its index all the same.
UNREAD = {
    "gather": lambda x, i: torch.gather(x, 0, i),
    "index": lambda x, i: x[i],
    "index in part": lambda x, i: x[i][:1],
    "embedding": lambda x, i: F.embedding(i, x.view(-1, 1)),
    "embedding in part": lambda x, i: F.embedding(i, x.view(-1, 1))[0],
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x.view(2, 2).take(i),
    "index_put": lambda x, i: x.clone().index_put_((i,), x[:2]),
    "index_add": lambda x, i: x.clone().index_add_(0, i, x[:2]),
    "scatter": lambda x, i: x.scatter(0, i, x[:2]),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[:2]),
    "overwritten": lambda x, i: x.clone().scatter_(0, i, x[:2]).zero_(),
    "masked_scatter": lambda x, i: x.masked_scatter(torch.arange(4) < i[1], x[:2]),
    "a loss": lambda x, i: F.cross_entropy(x.view(2, 2), i % 7),
    "a quotient": lambda x, i: torch.arange(2) // (i - 9),
    "a remainder": lambda x, i: torch.arange(2) % (i - 9),
    "an inverse": lambda x, i: torch.linalg.inv(torch.diag(i - 9.0)),
    "a call": lambda x, i: torch.linalg.eigvalsh(torch.diag((i - 9.0).reciprocal())),
    "bins": lambda x, i: torch.histc((i - 9.0).reciprocal()),
}


@program
def operators_that_nobody_reads(w):
    for name, look in UNREAD.items():

        def f(x, i, look=look):
            y = look(x, i)
            z = x * 2
            return (z, y) if "part" in name else z

        def caught(x, i, look=look):
            try:
                look(x, i)
            except (RuntimeError, IndexError) as error:
                return x, type(error).__name__
            return x + 1, "fine"

        for function in (f, caught):
            compiled = w.compile(function)
            for k in (1, 9, 1, 9, 0):
                w.call(compiled, w.t(4), torch.tensor([0, k]))


@program
def operators_that_nobody_reads_before_a_backward(w):
    weight = torch.nn.Parameter(w.t(4))

    def f(x, i):
        torch.gather(x * weight, 0, i)
        return (weight * x).sum()

    def step(x, i):
        weight.grad = None
        F.cross_entropy((weight * x).view(2, 2), i % 7).backward()

    f, step = w.compile(f), w.compile(step)
    for k in (1, 9, 1, 9, 0):
        i = torch.tensor([0, k])
        y = w.call(f, w.t(4), i)
        if k != 9:
            w.backward(y, weight)
        w.call(step, w.t(4), i)
        w.note(weight.grad)


@program
def what_was_written_before_an_operator_fails(w):
    functions = (
        lambda x, i: (x.mul_(0.5), x[i])[0],
        lambda x, i: x[:2].mul_(0.5) + x[i],
        lambda x, i: x.mul_(0.5).index_add_(0, i, torch.ones(2)),
        lambda x, i: x.mul_(0.5).scatter_(0, i, torch.ones(2)),
        lambda x, i: (x.mul_(0.5), torch.arange(2) // (i - 9))[0],
        lambda x, i: (x.mul_(0.5), torch.arange(2) % (i - 9))[1],
        lambda x, i: x.mul_(0.5).bernoulli_(torch.arange(4.0) - i[1] + 1),
    )
    for function in functions:
        f = w.compile(function)
        for k in (1, 9, 1, 9, 0):
            w.call(f, w.t(4), torch.tensor([0, k]))


@program
def errors_of_sizes_within_c_code(w):
    def f(x, y):
        return sum(itertools.chain([x], [y])) * 2

    f = w.compile(f)
    for n in (4, 5, 4, 3):
        w.call(f, w.t(4), w.t(n))


class Remembering(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.tags = {"old", "gone"}
        self.seen = 0

    def forward(self, x, i):
        try:
            self.count = self.count + 1
            self.hidden = x * 2
            self.register_buffer("last", x + 1, persistent=False)
            self.seen += 1
            self.tags.discard("gone")
            self.tags.add("new")
            return x[i] * self.hidden.sum()
        except IndexError:
            return x, self.count, self.seen


class Shuffled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # Numbers of equal places in small tables: which of them comes first depends on which came
        # first, and 31's place is left by one that has gone.
        self.tags = {15, 7, 31}
        self.many = {8 * i + 3 for i in range(40)}
        self.tags.discard(31)
        self.many -= {8 * i + 3 for i in range(0, 40, 3)}

    def forward(self, x, i):
        try:
            self.tags.discard(15)
            self.tags |= {23, 39, 47, 55, 63, 71}
            self.many.clear()
            return x[i] * 2
        except IndexError:
            self.tags.add(79)
            return x + len(self.many)


@program
def sets_that_change_before_an_operator_fails_keep_their_order(w):
    for order in ((9, 1, 9), (1, 9, 1)):
        module = Shuffled()
        f = w.compile(module)
        for k in order:
            w.call(f, w.t(4), torch.tensor([0, k]))
            w.note(list(module.tags), list(module.many))
            module.tags.pop()
            module.many.add(11)


@program
def attributes_that_are_set_before_an_operator_fails(w):
    for order in ((9, 1, 9, 1), (1, 9, 1, 9)):
        module = Remembering()
        f = w.compile(module)
        for k in order:
            w.call(f, w.t(4), torch.tensor([0, k]))
            w.note(module.count, module.hidden, module.last, module.seen, sorted(module.tags))
            w.note(sorted(module.state_dict()), sorted(module._non_persistent_buffers_set))


class Noting:
    def __init__(self, number, swallows=True):
        self.number, self.swallows, self.seen = number, swallows, 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.seen += self.number
        return self.swallows


@program
def a_context_that_is_another_one_is_left_by_an_exception_behind_a_break(w):
    first, second, third = Noting(1), Noting(10), Noting(100, swallows=False)
    contexts = [first]

    def f(x, fails):
        with contexts[0] as c:
            print(end="")
            x = x * 2
            if fails:
                raise ValueError
            x = x + c.number
        return x

    f = w.compile(f)
    for contexts[0] in (first, first, second, third, first, second):
        for fails in (True, False):
            w.call(f, w.t(3), fails)
            w.note(first.seen, second.seen, third.seen)
