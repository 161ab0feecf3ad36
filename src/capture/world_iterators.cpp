// Iterators that come with the call, or live across a break: what they give is guarded, and that
// the recording has moved them is an effect; see world.h and iterators.h.
//
// What an iterator gives is a node, reached from the iterator where it stands when the segment
// begins: guards move nothing. Within a recording the iterator itself moves. Costs a node an item.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "capture/departing.h"
#include "capture/iterators.h"
#include "capture/objects.h"
#include "capture/world.h"

namespace ingot::capture {

bool World::can_move(PyObject* o) const {
    const Known* k = find(o);
    if (is_basic_iterator(o)) return k == nullptr || k->dynamic();
    if (!moves_others(o) || (k != nullptr && !k->dynamic()) || is_strict(o)) return false;
    for (PyObject* inner : moved_by(o))
        if (!can_move(inner)) return false;
    return true;
}

Ref World::part_ahead(PyObject* iterator, Reach reach, Py_ssize_t index, Ref value) {
    const Known known = *find(iterator);
    if (PyObject* own = number_in(iterator, known, reach, index, nullptr, value.get()))
        return Ref::borrow(own);
    if (is_let_go(value.get())) throw Puzzle("an iterator over objects with finalizers");
    add_node(known, reach, index, nullptr, value.get());
    return value;
}

Ref World::ahead_of(PyObject* o, Taken& now) {
    const auto taken = taken_.find(o);
    const Py_ssize_t before = taken == taken_.end() ? 0 : taken->second;
    if (is_basic_iterator(o)) {
        PyObject* over = iterated_.try_emplace(o, Ref::borrow(iterated(o))).first->second.get();
        if (const Known* k = over == nullptr ? nullptr : find(over))
            if (k->dirty || std::ranges::any_of(written_keys_, [&](const WrittenKey& w) {
                    return w.container.get() == over;
                }))
                throw Puzzle("an iterator over what has been changed");
        const Py_ssize_t ahead = now[o]++;
        bool broken = false;
        Ref item = item_ahead(o, ahead, &broken);
        if (broken) throw Puzzle("an iterator over what has been changed");
        Ref key = item ? key_ahead(o, ahead) : Ref();
        const bool pair = static_cast<bool>(key);
        if (pair) key = part_ahead(o, Reach::AheadKey, before + ahead, std::move(key));
        item = part_ahead(o, Reach::Ahead, before + ahead, std::move(item));
        if (!pair) return item;
        Ref both = Ref::steal(PyTuple_Pack(2, key.get(), item.get()));
        if (!both) throw Puzzle("no memory");
        return both;
    }
    const std::vector<PyObject*> others = moved_by(o);
    for (std::size_t i = 0; i < others.size(); ++i)
        if (find(others[i]) == nullptr)
            add_node(Known(*find(o)), Reach::Moved, static_cast<Py_ssize_t>(i), nullptr, others[i]);
    std::vector<Ref> items;
    const bool counts = Py_IS_TYPE(o, &PyEnum_Type);
    for (PyObject* inner : others) {
        items.push_back(ahead_of(inner, now));
        if (!items.back()) return {};
    }
    if (items.empty()) return {};
    if (counts) {
        const Py_ssize_t ahead = now[o]++;
        Ref count = count_of(o, ahead);
        if (!count) throw Puzzle("an iterator that counts very far");
        items.insert(items.begin(), part_ahead(o, Reach::Count, before + ahead, std::move(count)));
    } else {
        ++now[o];
    }
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    if (!tuple) throw Puzzle("no memory");
    for (std::size_t i = 0; i < items.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), items[i].release());
    return tuple;
}

Ref World::move(PyObject* iterator) {
    Taken now;
    Ref item = ahead_of(iterator, now);
    undo_.note_move(iterator);
    held_.push_back(Ref::borrow(iterator));
    const Ref moved = Ref::steal(PyIter_Next(iterator));
    if (!moved && PyErr_Occurred()) throw pybind11::error_already_set();
    for (const auto& [one, times] : now) taken_[one] += times;
    if (!moves_.empty() && moves_.back().first.get() == iterator)
        ++moves_.back().second;
    else
        moves_.emplace_back(Ref::borrow(iterator), 1);
    return item;
}

void World::add_moves(RecipeBuilder& builder) {
    for (const auto& [iterator, times] : moves_) {
        const Ref number = Ref::steal(PyLong_FromSsize_t(times));
        if (!number) throw NoRecipe("no memory");
        builder.effect(Make::Move, iterator.get(), {number.get()});
    }
    if (!moves_.empty()) set_iterated_apart();
}

void World::set_iterated_apart() {
    std::vector<PyObject*> written;
    for (const Ref& container : written_wholes_) written.push_back(container.get());
    for (const WrittenKey& w : written_keys_)
        if (PyDict_Check(w.container.get())) written.push_back(w.container.get());
    for (const auto& [iterator, over] : iterated_) {
        if (!over || PyTuple_Check(over.get())) continue;
        std::int32_t node = -1;
        for (PyObject* container : written) {
            const Known* k = find(container);
            if (container == over.get() || k == nullptr ||
                Py_TYPE(container) != Py_TYPE(over.get()))
                continue;
            if (node < 0) {
                Node reached;
                reached.place = find(iterator)->place;
                reached.parent = find(iterator)->node;
                reached.reach = Reach::Iterated;
                reached.demand.check = Check::Type;
                reached.demand.expected =
                    Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(over.get())));
                guards_.nodes.push_back(std::move(reached));
                node = static_cast<std::int32_t>(guards_.nodes.size()) - 1;
            }
            guards_.relations.push_back(
                {node, k->node, k->dynamic() ? Ref() : Ref::borrow(container), false});
        }
    }
}

}  // namespace ingot::capture
