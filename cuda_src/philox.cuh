#pragma once
#include "types.cuh"

// Philox4x32-10 with the counters and keys of ruda_tensor/philox.py: the four words of block `block` of the draw that
// (seed, offset) names. Element e of a draw of one word each reads word e % 4 of block e / 4.
struct Words { u32 at[4]; };
struct Keys { u32 low[10], high[10]; };  // of each round, which are those of every block of a draw

DEVICE Keys keys_of(u64 seed) {
    Keys keys;
    UNROLL for (int round = 0; round < 10; ++round) {
        keys.low[round] = (u32)seed + round * 0x9E3779B9u;
        keys.high[round] = (u32)(seed >> 32) + round * 0xBB67AE85u;
    }
    return keys;
}

DEVICE Words philox(const Keys& keys, u64 counter) {
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;
    UNROLL for (int round = 0; round < 10; ++round) {
        const u64 p = (u64)0xD2511F53u * c0, q = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(q >> 32) ^ c1 ^ keys.low[round];
        c1 = (u32)q;
        c2 = (u32)(p >> 32) ^ c3 ^ keys.high[round];
        c3 = (u32)p;
    }
    return Words{{c0, c1, c2, c3}};
}
