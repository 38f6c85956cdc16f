#pragma once
#include "types.cuh"

// Philox4x32-10 with the counters and keys of ruda_tensor/philox.py: the four words of block `block` of the draw that
// (seed, offset) names. Element e of a draw of one word each reads word e % 4 of block e / 4.
struct Words { u32 at[4]; };

DEVICE Words philox(u64 seed, u64 counter) {
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    UNROLL for (int round = 0; round < 10; ++round) {
        const u64 p = (u64)0xD2511F53u * c0, q = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(q >> 32) ^ c1 ^ k0;
        c1 = (u32)q;
        c2 = (u32)(p >> 32) ^ c3 ^ k1;
        c3 = (u32)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}
