// Minimax polynomials of the vector math, lowest power first. Written by tools/minimax.py; what
// each one approximates stands in tools/minimax_table.py.
#pragma once

namespace ingot::codegen {

// error 2^-28.1 on [-0.350039, 0.350039]
inline constexpr float kExpF[] = {
    0x1.fffffcp-2f, 0x1.555482p-3f, 0x1.555826p-5f, 0x1.124494p-7f, 0x1.6afe48p-10f,
};
// error 2^-29.8 on [-0.25, 0.5]
inline constexpr float kLogF[] = {
    0x1.55555ap-2f,  -0x1.00007p-2f, 0x1.999752p-3f, -0x1.55190ep-3f, 0x1.24657ep-3f,
    -0x1.04bc4ap-3f, 0x1.df0fcp-4f,  -0x1.7431dp-4f, 0x1.324b4ep-5f,
};
// error 2^-27.6 on [0.000244141, 0.390625]
inline constexpr float kTanhF[] = {
    -0x1.555532p-2f, 0x1.1106f6p-3f, -0x1.b835ap-5f, 0x1.51f882p-6f, -0x1.7509ccp-8f,
};
// error 2^-29.8 on [0.000244141, 0.8649]
inline constexpr float kErfSmallF[] = {
    0x1.06eba8p-3f, -0x1.81274p-2f,   0x1.ce2d64p-4f,  -0x1.b8011ap-6f,
    0x1.544a1ap-8f, -0x1.a60a64p-11f, 0x1.4f6a5ap-14f,
};
// error 2^-30.3 on [0.92, 4]
inline constexpr float kErfLargeF[] = {
    -0x1.20ef1cp0f,  -0x1.45328ap-1f, -0x1.b3259ap-4f,  0x1.8551bcp-6f,
    -0x1.dd6d8ap-9f, 0x1.527c16p-12f, -0x1.78d64cp-17f,
};
// error 2^-27.9 on [9.53674e-07, 0.618085]
inline constexpr float kSinF[] = {
    -0x1.555546p-3f,
    0x1.110774p-7f,
    -0x1.9951fcp-13f,
};
// error 2^-32.9 on [0.000244141, 0.618085]
inline constexpr float kCosF[] = {
    -0x1p-1f,
    0x1.55554ap-5f,
    -0x1.6c0c28p-10f,
    0x1.99e7ep-16f,
};

}  // namespace ingot::codegen
