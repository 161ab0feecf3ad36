// Minimax polynomials of the vector math, lowest power first. Written by tools/minimax.py; what
// each one approximates stands in tools/minimax_table.py. Those named 32 hold f32 values.
#pragma once

namespace ingot::codegen {

// error 2^-28.1 on [-0.350039, 0.350039]
inline constexpr double kExp32[] = {
    0x1.fffffcp-2, 0x1.555482p-3, 0x1.555826p-5, 0x1.124494p-7, 0x1.6afe48p-10,
};
// error 2^-29.8 on [-0.25, 0.5]
inline constexpr double kLog32[] = {
    0x1.55555ap-2,  -0x1.00007p-2, 0x1.999752p-3, -0x1.55190ep-3, 0x1.24657ep-3,
    -0x1.04bc4ap-3, 0x1.df0fcp-4,  -0x1.7431dp-4, 0x1.324b4ep-5,
};
// error 2^-27.5 on [0.000244141, 1]
inline constexpr double kTanh32[] = {
    -0x1.55553cp-2, 0x1.110be4p-3, -0x1.b96238p-5,  0x1.600984p-6,
    -0x1.045f2cp-7, 0x1.2d9c48p-9, -0x1.77bfe2p-12,
};
// error 2^-29.4 on [0.000244141, 1]
inline constexpr double kErfSmall32[] = {
    0x1.06eba8p-3, -0x1.81273ep-2,  0x1.ce2ce6p-4,  -0x1.b7f71ap-6,
    0x1.53f224p-8, -0x1.a3515ep-11, 0x1.477208p-14,
};
// error 2^-31.1 on [0.99, 4]
inline constexpr double kErfLarge32[] = {
    -0x1.20f1bcp0,  -0x1.451da8p-1, -0x1.b43496p-4,  0x1.88e6b4p-6,
    -0x1.eac0a6p-9, 0x1.6c4d84p-12, -0x1.ca3a82p-17,
};
// error 2^-27.9 on [9.53674e-07, 0.618085]
inline constexpr double kSin32[] = {
    -0x1.555546p-3,
    0x1.110774p-7,
    -0x1.9951fcp-13,
};
// error 2^-32.9 on [0.000244141, 0.618085]
inline constexpr double kCos32[] = {
    0x1.55554ap-5,
    -0x1.6c0c28p-10,
    0x1.99e7ep-16,
};
// error 2^-39.5 on [-0.350039, 0.350039]
inline constexpr double kExpD[] = {
    0x1.00000000659c1p-1,  0x1.5555558046aeep-3,  0x1.5555540b76244p-5,  0x1.11109df177d33p-7,
    0x1.6c18e8557a4d1p-10, 0x1.a18c954c87f8fp-13, 0x1.9e81647df8da7p-16,
};
// error 2^-45.8 on [-0.25, 0.5]
inline constexpr double kLogD[] = {
    0x1.5555555543689p-2, -0x1.0000000134cb8p-2, 0x1.999999c40cbd8p-3, -0x1.55555416c43f6p-3,
    0x1.2492388c8952fp-3, -0x1.00002bd88be0dp-3, 0x1.c7224c2a36cf4p-4, -0x1.999a804f944b1p-4,
    0x1.73e04ef01889ap-4, -0x1.5454ea56b36a2p-4, 0x1.3f13bbcfd0ca7p-4, -0x1.35d57067a8975p-4,
    0x1.18a233b89bc37p-4, -0x1.704a52515af6bp-5, 0x1.d56f0f67ff83p-7,
};
// error 2^-47.5 on [9.53674e-07, 0.618085]
inline constexpr double kSinD[] = {
    -0x1.55555555521b5p-3, 0x1.1111110c7dd4fp-7,   -0x1.a019f92c6dd5dp-13,
    0x1.71d766189f6b4p-19, -0x1.a95f100ff7808p-26,
};
// error 2^-42.9 on [0.000244141, 0.618085]
inline constexpr double kCosD[] = {
    0x1.5555554ecbf5dp-5,
    -0x1.6c16b81b9f99ap-10,
    0x1.a010d556bc1ccp-16,
    -0x1.241ca94ac086cp-22,
};
// error 2^-38.6 on [9.53674e-07, 1]
inline constexpr double kAtanD[] = {
    -0x1.5555554e4c599p-2,  0x1.99999515b2593p-3, -0x1.2491c6b239bc1p-3, 0x1.c70d7e78a20ebp-4,
    -0x1.73da424c84a83p-4,  0x1.38282c942fbf5p-4, -0x1.05887b37ec95fp-4, 0x1.a05795a54b7a3p-5,
    -0x1.24ee6cd4d37e7p-5,  0x1.4decf22d0207ap-6, -0x1.169519f128552p-7, 0x1.271daecafdeb3p-9,
    -0x1.25a61fbaff31fp-12,
};
// error 2^-33.4 on [-1, 0.669421]
inline constexpr double kErfcD[] = {
    0x1.058671b5378aep-2,   -0x1.b57034eff917bp-2, 0x1.eeea7dba2cc0dp-3,   -0x1.437f0b314b40ap-4,
    0x1.e94778c745915p-9,   0x1.ca95aa1300673p-8,  -0x1.bc3617fa8e3e4p-11, -0x1.0163f4b286205p-10,
    0x1.72d85bec31d9dp-15,  0x1.6d00fdac77615p-13, 0x1.add3d785b5da6p-16,  -0x1.cb5940a78fc03p-16,
    -0x1.6f3c3c939ec47p-17, 0x1.157167cf9bff1p-19, 0x1.916a298e11c2p-20,
};
// error 2^-63.1 on [-0.350039, 0.350039]
inline constexpr double kExp64[] = {
    0x1p-1,
    0x1.555555555555ep-3,
    0x1.555555555557p-5,
    0x1.111111110e08p-7,
    0x1.6c16c16c07dc1p-10,
    0x1.a01a01b7df30ep-13,
    0x1.a01a01f854596p-16,
    0x1.71dde59f705bfp-19,
    0x1.27e41ec728a52p-22,
    0x1.af7d9149874cdp-26,
    0x1.20a5a8ee51c28p-29,
};
// error 2^-58.4 on [-0.25, 0.5]
inline constexpr double kLog64[] = {
    0x1.555555555554ap-2, -0x1.0000000000159p-2, 0x1.999999999c76bp-3, -0x1.555555552be1cp-3,
    0x1.249249229e0a3p-3, -0x1.0000000d2b8dfp-3, 0x1.c71c730dcdcd4p-4, -0x1.9999967f18b4ap-4,
    0x1.745cde2cecec4p-4, -0x1.555549d37d2b1p-4, 0x1.3b19179962b6bp-4, -0x1.249da628f64b5p-4,
    0x1.10d2b42035596p-4, -0x1.fdeb4b25da704p-5, 0x1.e2a20ce5010b5p-5, -0x1.d95b9330ee587p-5,
    0x1.cfc779911155bp-5, -0x1.831e85cda5ddp-5,  0x1.b45412d00e39bp-6, -0x1.d15f67f96b4ecp-8,
};
// error 2^-59.6 on [0.000244141, 1]
inline constexpr double kTanh64[] = {
    -0x1.555555555554fp-2,  0x1.1111111110b21p-3,  -0x1.ba1ba1b9dd847p-5,  0x1.664f487873872p-6,
    -0x1.226e3458bbc1cp-7,  0x1.d6d3aed24ba46p-9,  -0x1.7da1da25b2b31p-10, 0x1.354b48f07cb99p-11,
    -0x1.f4de8f0420e46p-13, 0x1.939b51611a879p-14, -0x1.3f4b6b723591dp-15, 0x1.df1d8954fa53dp-17,
    -0x1.3f40ad7d799dep-18, 0x1.552eb905efff6p-20, -0x1.f43ce86702916p-23, 0x1.6de87b0c165fcp-26,
};
// error 2^-55.9 on [0.000244141, 1]
inline constexpr double kErfSmall64[] = {
    0x1.06eba8214db69p-3,  -0x1.812746b037a38p-2,  0x1.ce2f21a047bf8p-4,  -0x1.b82ce3147ea85p-6,
    0x1.565bcd756f695p-8,  -0x1.c02dcd651d8f3p-11, 0x1.f9a736e4f8521p-14, -0x1.f5436a993e344p-17,
    0x1.c2799e7a5d4f3p-20, -0x1.d4cad375257bp-23,  0x1.597c887f6ddaep-24, -0x1.dbdd4ea583e49p-25,
    0x1.f823f34cbc645p-26, -0x1.3ff20d0d067e3p-27, 0x1.6b813e920c5aap-30,
};
// error 2^-57.9 on [0.99, 6]
inline constexpr double kErfLarge64[] = {
    -0x1.20dd743207644p0,   -0x1.45f314bc46d2dp-1,  -0x1.a4f351f889f69p-4,  0x1.395b0706a4bbfp-6,
    0x1.b9dd37f45f274p-13,  -0x1.bb3e2fc528401p-10, 0x1.2c5b34021bf3cp-11,  0x1.3bbc3176f5ef7p-19,
    -0x1.940415aa09124p-14, 0x1.d975a5e841c4cp-15,  -0x1.57fdf17fe31f1p-16, 0x1.6c6cce345603fp-18,
    -0x1.242fffa533989p-20, 0x1.61f5ab0e3f8f5p-23,  -0x1.3b6c9138ec349p-26, 0x1.8707fd1bee6acp-30,
    -0x1.2d6db79db97ebp-34, 0x1.b3358ec6f3d9ap-40,
};
// error 2^-57.8 on [9.53674e-07, 0.618085]
inline constexpr double kSin64[] = {
    -0x1.5555555555548p-3, 0x1.111111110f73p-7,    -0x1.a01a019be91b1p-13,
    0x1.71de35551bf78p-19, -0x1.ae5e4b6cebd79p-26, 0x1.5d8b4aa535d7dp-33,
};
// error 2^-63.9 on [0.000244141, 0.618085]
inline constexpr double kCos64[] = {
    0x1.555555555554bp-5,   -0x1.6c16c16c15005p-10, 0x1.a01a019c8c7d7p-16,
    -0x1.27e4f7ef0d73dp-22, 0x1.1ee9d9c6a12f3p-29,  -0x1.8fa55397e2ffap-37,
};

}  // namespace ingot::codegen
