//! The codec of every client and service: that of prost, with small buffers.
//!
//! Most messages have some hundred bytes. By itself the framework makes a buffer of 8 KiB for each message in each
//! direction, more than what the allocator keeps at hand for a thread, so that a call costs two of its slow paths at
//! either end. A buffer grows where a message is longer.

use prost::Message;
use std::marker::PhantomData;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// The first bytes of a buffer.
const BUFFER_BYTES: usize = 512;
/// A stream is written once it has this many bytes ready, as without this codec.
const YIELD_BYTES: usize = 32 << 10;

/// See the module.
#[derive(Clone, Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> SmallBuffers<T, U> {
        SmallBuffers(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}
