// Replays: a call served by the segments recorded before, without Python bytecode.
//
// A list of segments is searched for one whose guards hold; it runs, makes its objects, and either
// returns or carries out the operation at its break, behind which the search goes on. Where no
// segment fits, real frames are built from what is there, and recorded again or left to CPython.
#pragma once
#include <Python.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capture/recording.h"

namespace ingot::capture {

struct ReplayContext {
    const RecordingContext& recording;
    Stance stance = Stance::Default;
    std::string* failure = nullptr;                   // gets the sentence of the last failed guard
    std::shared_ptr<const Segment>* eager = nullptr;  // gets the one whose guards mean eager
};

enum class ReplayStatus : std::uint8_t {
    Done,     // `result` is what the call gives (nullptr: raised)
    NoMatch,  // nothing has happened
    Eager,    // run eagerly: these guards mean that, or an operator fails; nothing has happened
};

/// Serves a call with these slots from `list`.
ReplayStatus replay(const ReplayContext& context, const SegmentList& list,
                    std::span<PyObject* const> slots, PyObject** result);

}  // namespace ingot::capture
