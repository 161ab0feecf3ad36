// What guards stand on and why one failed, in words; and what the garbage collector sees of them.
#include "capture/guard_text.h"

#include "capture/guards.h"

namespace ingot::capture {

std::string text_of_value(PyObject* object) {
    if (object == nullptr) return "nothing";
    if (!is_plain_constant(object) && !PyType_Check(object))
        return std::string("an object of type ") + Py_TYPE(object)->tp_name;
    Ref text = Ref::steal(PyObject_Repr(object));
    const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (utf8 == nullptr) {
        PyErr_Clear();
        return "?";
    }
    std::string s = utf8;
    if (s.size() > 60) s = s.substr(0, 57) + "...";
    return s;
}

std::string text_of_sizes(const std::vector<std::int64_t>& sizes) {
    std::string s = "[";
    for (std::size_t i = 0; i < sizes.size(); ++i)
        s += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    return s + "]";
}

void GuardSet::begin_sizes(std::shared_ptr<trace::SymbolicSizes> symbols) {
    sizes_ = std::make_unique<SizeGuards>(std::move(symbols));
}

std::string GuardSet::key(std::int32_t index) const {
    if (index < 0) return {};
    const Place& p = places[static_cast<std::size_t>(index)];
    if (p.reach == Reach::Slot) return "slot " + std::to_string(p.index);
    return key(p.parent) + "/" + std::to_string(static_cast<int>(p.reach)) + ":" +
           std::to_string(p.index) + ":" + (p.key ? text_of_value(p.key.get()) : std::string());
}

std::string GuardSet::path(std::int32_t index) const {
    if (index < 0) return "an object";
    const Place& p = places[static_cast<std::size_t>(index)];
    switch (p.reach) {
        case Reach::Slot:
            return p.key ? std::string(PyUnicode_AsUTF8(p.key.get()))
                         : "argument " + std::to_string(p.index);
        case Reach::Constant:
            if (p.key && PyUnicode_Check(p.key.get())) return PyUnicode_AsUTF8(p.key.get());
            return text_of_value(p.key.get());
        case Reach::DictItem: {
            const bool attribute =
                p.parent >= 0 &&
                places[static_cast<std::size_t>(p.parent)].reach == Reach::InstanceDict;
            if (attribute && PyUnicode_Check(p.key.get()))
                return path(places[static_cast<std::size_t>(p.parent)].parent) + "." +
                       PyUnicode_AsUTF8(p.key.get());
            return path(p.parent) + "[" + text_of_value(p.key.get()) + "]";
        }
        case Reach::InstanceDict:
            return path(p.parent) + ".__dict__";
        case Reach::Member:
            return path(p.parent) + "." + (p.key ? PyUnicode_AsUTF8(p.key.get()) : "?");
        case Reach::Item:
            return path(p.parent) + "[" + std::to_string(p.index) + "]";
        case Reach::Itself:
            return path(p.parent);
        case Reach::Gradient:
            return path(p.parent) + ".grad";
        case Reach::Variable:
            return "a context variable";
        case Reach::ThreadDict:
            return path(p.parent) + ".__dict__";
        case Reach::CachedResult:
            return "the cached result of " + text_of_value(p.key.get());
        case Reach::Referent:
            return path(p.parent) + "()";
        case Reach::Ahead:
        case Reach::AheadKey:
        case Reach::Count: {
            static constexpr const char* kWhat[] = {"item", "key", "number"};
            const auto which = p.reach == Reach::Ahead ? 0 : p.reach == Reach::AheadKey ? 1 : 2;
            return std::string(kWhat[which]) + " " + std::to_string(p.index) + " ahead of " +
                   path(p.parent);
        }
        case Reach::Moved:
            return "iterator " + std::to_string(p.index) + " of " + path(p.parent);
        case Reach::Iterated:
            return "what " + path(p.parent) + " iterates over";
        case Reach::Contents:
            return path(p.parent) + ".cell_contents";
        case Reach::Lookup:
            return path(p.parent) + "." + (p.key ? PyUnicode_AsUTF8(p.key.get()) : "?");
    }
    return {};
}

std::vector<std::string> GuardSet::sentences() const {
    std::vector<std::string> out;
    const auto demand = [&](const std::string& what, const Demand& d) {
        switch (d.check) {
            case Check::Identity:
                return what + " is the same object";
            case Check::Equal:
                return what + " == " + text_of_value(d.expected.get());
            case Check::Type:
                return "type(" + what + ") is " + text_of_value(d.expected.get());
            case Check::Sized:
                return "type(" + what + ") is " + text_of_value(d.expected.get()) + " and len(" +
                       what + ") == " + std::to_string(d.length);
            case Check::Tensor:
                return what + " is a tensor of " + c10::toString(d.tensor->dtype) + " with sizes " +
                       text_of_sizes(d.tensor->sizes) + " and strides " +
                       text_of_sizes(d.tensor->strides);
            case Check::Absent:
                return what + " is absent";
            case Check::Keys:
                return "the keys of " + what;
            case Check::Members:
                return "the members of " + what;
            case Check::Integer:
                return "type(" + what + ") is int";
            case Check::Float:
                return "type(" + what + ") is float";
        }
        return what;
    };
    for (const Node& n : nodes) out.push_back(demand(path(n.place), n.demand));
    for (const PinnedDict& d : dicts) {
        std::string text = "version of ";
        text += path(d.place);
        text += ", or else";
        for (const PinnedRead& r : d.reads) {
            std::string key = "[";
            key += text_of_value(r.key.get());
            key += "]";
            text += " ";
            text += demand(key, r.demand);
            text += ";";
        }
        out.push_back(std::move(text));
    }
    for (const PinnedList& l : lists) out.push_back("the items of " + path(l.place));
    for (const PinnedType& t : types) out.push_back("the class " + text_of_value(t.type.get()));
    for (const PinnedFunction& f : functions)
        out.push_back(
            std::string("code and defaults of ") +
            PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(f.function.get())->func_qualname));
    for (const PinnedPointer& p : pointers) out.push_back(demand(path(p.place), p.read.demand));
    for (const CachedCall& c : cached_calls) out.push_back(demand(path(c.place), c.read.demand));
    if (sizes_ != nullptr)
        for (std::string& text : sizes_->sentences()) out.push_back(std::move(text));
    for (std::string& text : floats.sentences()) out.push_back(std::move(text));
    return out;
}

int GuardSet::traverse(visitproc visit, void* arg) const {
    const auto demand = [&](const Demand& d) {
        Py_VISIT(d.expected.get());
        Py_VISIT(d.most.get());
        return 0;
    };
    const auto read = [&](const PinnedRead& r) {
        Py_VISIT(r.key.get());
        return demand(r.demand);
    };
    Py_VISIT(warning_filters.get());
    for (const Place& p : places) Py_VISIT(p.key.get());
    for (const Node& n : nodes)
        if (int r = demand(n.demand)) return r;
    for (const PinnedDict& d : dicts) {
        Py_VISIT(d.dict.get());
        Py_VISIT(d.owner.get());
        for (const PinnedRead& p : d.reads)
            if (int r = read(p)) return r;
        Py_VISIT(d.keys.get());
    }
    for (const PinnedList& l : lists) {
        Py_VISIT(l.list.get());
        for (const Ref& item : l.items) Py_VISIT(item.get());
        for (const PinnedRead& p : l.reads)
            if (int r = read(p)) return r;
    }
    for (const PinnedType& t : types) {
        Py_VISIT(t.type.get());
        for (const auto& [name, value] : t.lookups) Py_VISIT(value.get());
    }
    for (const PinnedFunction& f : functions) {
        Py_VISIT(f.function.get());
        Py_VISIT(f.code.get());
        Py_VISIT(f.defaults.get());
        Py_VISIT(f.keyword_defaults.get());
    }
    for (const PinnedPointer& p : pointers) {
        Py_VISIT(p.owner.get());
        if (int r = read(p.read)) return r;
    }
    for (const PinnedTensor& t : tensors) Py_VISIT(t.tensor.get());
    for (const Relation& r : relations) Py_VISIT(r.object.get());
    for (const CachedCall& c : cached_calls) {
        Py_VISIT(c.callable.get());
        Py_VISIT(c.arguments.get());
        Py_VISIT(c.names.get());
        if (int r = read(c.read)) return r;
    }
    return changed.traverse(visit, arg);
}

}  // namespace ingot::capture
