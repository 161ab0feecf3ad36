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
// error 2^-27.5 on [0.000244141, 1]
inline constexpr float kTanhF[] = {
    -0x1.55553cp-2f, 0x1.110be4p-3f, -0x1.b96238p-5f,  0x1.600984p-6f,
    -0x1.045f2cp-7f, 0x1.2d9c48p-9f, -0x1.77bfe2p-12f,
};
// error 2^-29.4 on [0.000244141, 1]
inline constexpr float kErfSmallF[] = {
    0x1.06eba8p-3f, -0x1.81273ep-2f,  0x1.ce2ce6p-4f,  -0x1.b7f71ap-6f,
    0x1.53f224p-8f, -0x1.a3515ep-11f, 0x1.477208p-14f,
};
// error 2^-31.1 on [0.99, 4]
inline constexpr float kErfLargeF[] = {
    -0x1.20f1bcp0f,  -0x1.451da8p-1f, -0x1.b43496p-4f,  0x1.88e6b4p-6f,
    -0x1.eac0a6p-9f, 0x1.6c4d84p-12f, -0x1.ca3a82p-17f,
};
// error 2^-27.9 on [9.53674e-07, 0.618085]
inline constexpr float kSinF[] = {
    -0x1.555546p-3f,
    0x1.110774p-7f,
    -0x1.9951fcp-13f,
};
// error 2^-32.9 on [0.000244141, 0.618085]
inline constexpr float kCosF[] = {
    0x1.55554ap-5f,
    -0x1.6c0c28p-10f,
    0x1.99e7ep-16f,
};
// error 2^-39.5 on [-0.350039, 0.350039]
inline constexpr double kExpD[] = {
    0x1.00000000659c1p-1,  0x1.5555558046aeep-3,  0x1.5555540b76244p-5,  0x1.11109df177d33p-7,
    0x1.6c18e8557a4d1p-10, 0x1.a18c954c87f8fp-13, 0x1.9e81647df8da7p-16,
};
// error 2^-46.1 on [-0.25, 0.5]
inline constexpr double kLogD[] = {
    0x1.5555555543689p-2, -0x1.0000000134cb8p-2, 0x1.999999c40cbd8p-3, -0x1.55555416c43f6p-3,
    0x1.2492388c8952fp-3, -0x1.00002bd88c057p-3, 0x1.c7224c2a36eadp-4, -0x1.999a804f6d06dp-4,
    0x1.73e04eefbc6d5p-4, -0x1.5454ea5cc21fdp-4, 0x1.3f13bbe535bfdp-4, -0x1.35d5701149234p-4,
    0x1.18a2319b2b148p-4, -0x1.704a4b43319bcp-5, 0x1.d56f00e4ec9fcp-7,
};
// error 2^-47.5 on [9.53674e-07, 0.618085]
inline constexpr double kSinD[] = {
    -0x1.55555555521b5p-3, 0x1.1111110c7dd4fp-7,   -0x1.a019f92c6e8b2p-13,
    0x1.71d76619a7b68p-19, -0x1.a95f0f8171bb8p-26,
};
// error 2^-42.9 on [0.000244141, 0.618085]
inline constexpr double kCosD[] = {
    0x1.5555554ecbf5dp-5,
    -0x1.6c16b81b9f99ap-10,
    0x1.a010d556bc1ccp-16,
    -0x1.241ca94ac086cp-22,
};
// error 2^-34.5 on [9.53674e-07, 1]
inline constexpr double kAtanD[] = {
    -0x1.5555554e4c599p-2,  0x1.99999515b2593p-3, -0x1.2491c6b239bc1p-3, 0x1.c70d7e78a20ebp-4,
    -0x1.73da424c84a83p-4,  0x1.38282c942fbf5p-4, -0x1.05887b37ec95fp-4, 0x1.a05795a54b7a3p-5,
    -0x1.24ee6cd4d37e7p-5,  0x1.4decf27ae5a67p-6, -0x1.16951c4595c31p-7, 0x1.271dad83845fbp-9,
    -0x1.25a5dc2c7a3abp-12,
};
// error 2^-29.2 on [-1, 0.669421]
inline constexpr double kErfcD[] = {
    0x1.058671b5378aep-2,   -0x1.b57034eff917bp-2, 0x1.eeea7dba2cc0dp-3,   -0x1.437f0b314b40ap-4,
    0x1.e94778c745915p-9,   0x1.ca95aa1300673p-8,  -0x1.bc3617fa8e3e4p-11, -0x1.0163f4b286205p-10,
    0x1.72d85bec31d9dp-15,  0x1.6d00fdac77615p-13, 0x1.add3d785b5da6p-16,  -0x1.cb7aab0bdd80ep-16,
    -0x1.6e90ff0cb387ep-17, 0x1.14c5a7514c2a6p-19, 0x1.882da66108943p-20,
};

}  // namespace ingot::codegen
