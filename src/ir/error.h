// The three classes of failure. A user's mistake raises what PyTorch would raise; a compiler bug
// makes the caller fall back to eager, log one line and leave a reproducer; "not supported" makes
// it fall back quietly and count it.
#pragma once
#include <stdexcept>
#include <string>

namespace ingot {

class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};
/// The user's program or input is at fault; the text says what to change.
class UserError : public Error {
    using Error::Error;
};
/// An invariant of the compiler does not hold.
class InternalError : public Error {
    using Error::Error;
};
/// Correct input that this version does not compile; the text is the one-line reason.
class NotSupported : public Error {
    using Error::Error;
};

/// Throws InternalError with `message` unless `condition` holds.
inline void check(bool condition, const char* message) {
    if (!condition) throw InternalError(message);
}
inline void check(bool condition, const std::string& message) {
    if (!condition) throw InternalError(message);
}

}  // namespace ingot
