// Which parameters turned out to have changed without anybody's knowing: frozen_calls.cpp compares
// them with fingerprints (runtime/fingerprint.h) of what their folded and packed copies were made
// from. Costs nothing until then.
#pragma once
#include <functional>
#include <string>

namespace ingot::trace {

/// Called from then on with the name of each such parameter, from the thread whose call found it,
/// before the call computes anything. Replaces the one before; empty: nobody is told.
void on_unseen_write(std::function<void(const std::string&)> handler);
/// Tells.
void report_unseen_write(const std::string& name);

}  // namespace ingot::trace
