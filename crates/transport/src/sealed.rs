//! Connections between two processes that share a secret, and no certificate.
//!
//! What Muster starts inside another scheduler's allocation has no certificate and is to get none: it
//! runs for one placement, as somebody else's batch job. It is handed a secret made for it alone, and
//! both ends prove that they know it by being able to read each other at all.
//!
//! Each side contributes a random number; from the secret and the two a key for each direction is derived
//! (HKDF-SHA256), and every frame is sealed with it (ChaCha20-Poly1305, RFC 8439) under a counter, so a
//! frame that was altered, repeated, reordered, or sent back to its sender does not open. There is no
//! forward secrecy: who learns the secret later can read what was recorded. The other side may show a
//! name in the clear first, by which the secret is found.
//!
//! **Invariant:** no byte of a frame is given out before its seal held; a frame is at most
//! [`FRAME_BYTES_MAX`] long, and memory is only taken for bytes that have arrived.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of the largest frame, seal included.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of the longest name that a caller may show.
pub const SEALED_NAME_BYTES_MAX: usize = 255;

const MAGIC: [u8; 8] = *b"MSEALED1";
const RANDOM_BYTES: usize = 32;
const SEAL_BYTES: usize = 16;

/// What both ends know and nobody else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret([u8; RANDOM_BYTES]);

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> Result<Secret, SealedError> {
        Ok(Secret(random()?))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a sealed connection could not be made or go on.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The system has no randomness.
    #[error("the system gives no random numbers")]
    Random,
    /// What came first is not the beginning of such a connection.
    #[error("the other side does not speak this protocol")]
    Opening,
    /// The other side does not know the secret, or what it sent was altered on the way.
    #[error("a frame does not open: another secret, or altered on the way")]
    Seal,
    /// Longer than a frame may be.
    #[error("a frame of {0} bytes; at most {FRAME_BYTES_MAX} are allowed")]
    Long(usize),
    /// Far beyond any real connection.
    #[error("the connection has used up its numbers")]
    Spent,
}

fn random() -> Result<[u8; RANDOM_BYTES], SealedError> {
    let mut bytes = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SealedError::Random)?;
    Ok(bytes)
}

/// The key of one direction and the number of the next frame.
struct Direction {
    key: LessSafeKey,
    next: u64,
}

impl Direction {
    fn nonce(&mut self) -> Result<Nonce, SealedError> {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next = self.next.checked_add(1).ok_or(SealedError::Spent)?;
        Ok(Nonce::assume_unique_for_key(bytes))
    }
}

#[derive(Clone, Copy)]
struct KeyBytes;

impl KeyType for KeyBytes {
    fn len(&self) -> usize {
        CHACHA20_POLY1305.key_len()
    }
}

/// The key of the direction named.
fn derive(secret: &Secret, caller: &[u8], called: &[u8], direction: &[u8]) -> Direction {
    let salt = Salt::new(HKDF_SHA256, &[caller, called].concat());
    let mut bytes = [0; RANDOM_BYTES];
    let expanded = salt.extract(&secret.0);
    let info = [b"muster sealed 1", direction];
    let okm = expanded.expand(&info, KeyBytes).expect("32 bytes are far below what HKDF-SHA256 can give");
    okm.fill(&mut bytes).expect("the length asked for is the length of the buffer");
    let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes).expect("a key of this cipher has 32 bytes");
    Direction { key: LessSafeKey::new(key), next: 0 }
}

/// Takes frames out of a connection.
pub struct SealedReader<R> {
    from: R,
    direction: Direction,
}

/// Puts frames into a connection.
pub struct SealedWriter<W> {
    to: W,
    direction: Direction,
}

impl<R: AsyncRead + Unpin> SealedReader<R> {
    /// The next frame; none when the other side has closed between two. Not cancel safe.
    ///
    /// # Errors
    /// When the connection breaks or a frame does not open; nothing after that can be read.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, SealedError> {
        let mut length = [0; 4];
        match self.from.read(&mut length).await? {
            0 => return Ok(None),
            read => self.from.read_exact(&mut length[read..]).await?,
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(SealedError::Long(length));
        }
        let mut frame = Vec::new();
        (&mut self.from).take(length as u64).read_to_end(&mut frame).await?;
        if frame.len() != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let nonce = self.direction.nonce()?;
        let opened = self.direction.key.open_in_place(nonce, Aad::empty(), &mut frame);
        let length = opened.map_err(|_| SealedError::Seal)?.len();
        frame.truncate(length);
        Ok(Some(frame))
    }
}

impl<W: AsyncWrite + Unpin> SealedWriter<W> {
    /// Sends a frame.
    ///
    /// # Errors
    /// When it is too long, or the connection breaks.
    pub async fn write(&mut self, mut frame: Vec<u8>) -> Result<(), SealedError> {
        let length = frame.len() + SEAL_BYTES;
        if length > FRAME_BYTES_MAX {
            return Err(SealedError::Long(length));
        }
        let nonce = self.direction.nonce()?;
        let sealed = self.direction.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut frame);
        sealed.map_err(|_| SealedError::Long(length))?;
        let head = u32::try_from(frame.len()).map_err(|_| SealedError::Long(length))?;
        self.to.write_all(&head.to_le_bytes()).await?;
        self.to.write_all(&frame).await?;
        self.to.flush().await?;
        Ok(())
    }
}

/// Opens a connection under a name that the other side knows the secret of. That it really does shows
/// with the first frame that can be read.
///
/// # Errors
/// When the connection breaks, or the name is too long.
pub async fn dial<R, W>(
    mut from: R,
    mut to: W,
    name: &str,
    secret: &Secret,
) -> Result<(SealedReader<R>, SealedWriter<W>), SealedError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let length = u8::try_from(name.len()).map_err(|_| SealedError::Opening)?;
    let own = random()?;
    let mut opening = MAGIC.to_vec();
    opening.push(length);
    opening.extend_from_slice(name.as_bytes());
    opening.extend_from_slice(&own);
    to.write_all(&opening).await?;
    to.flush().await?;
    let mut theirs = [0; RANDOM_BYTES];
    from.read_exact(&mut theirs).await?;
    let reader = SealedReader { from, direction: derive(secret, &own, &theirs, b"to caller") };
    let writer = SealedWriter { to, direction: derive(secret, &own, &theirs, b"to called") };
    Ok((reader, writer))
}

/// A caller that has shown a name, and proved nothing yet.
pub struct Greeted<R, W> {
    /// What it shows.
    pub name: String,
    from: R,
    to: W,
    theirs: [u8; RANDOM_BYTES],
}

/// Takes the name that a caller shows.
///
/// # Errors
/// When the connection breaks, or what comes is not of this protocol.
pub async fn greet<R, W>(mut from: R, to: W) -> Result<Greeted<R, W>, SealedError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut head = [0; MAGIC.len() + 1];
    from.read_exact(&mut head).await?;
    if head[..MAGIC.len()] != MAGIC {
        return Err(SealedError::Opening);
    }
    let mut name = vec![0; usize::from(head[MAGIC.len()])];
    from.read_exact(&mut name).await?;
    let name = String::from_utf8(name).map_err(|_| SealedError::Opening)?;
    let mut theirs = [0; RANDOM_BYTES];
    from.read_exact(&mut theirs).await?;
    Ok(Greeted { name, from, to, theirs })
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Greeted<R, W> {
    /// Goes on with the secret that belongs to the name.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn accept(
        mut self,
        secret: &Secret,
    ) -> Result<(SealedReader<R>, SealedWriter<W>), SealedError> {
        let own = random()?;
        self.to.write_all(&own).await?;
        self.to.flush().await?;
        let reader =
            SealedReader { from: self.from, direction: derive(secret, &self.theirs, &own, b"to called") };
        let writer =
            SealedWriter { to: self.to, direction: derive(secret, &self.theirs, &own, b"to caller") };
        Ok((reader, writer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};

    type Reader = SealedReader<ReadHalf<DuplexStream>>;
    type Writer = SealedWriter<WriteHalf<DuplexStream>>;

    async fn pair(caller: &Secret, called: &Secret) -> ((Reader, Writer), (Reader, Writer)) {
        let (near, far) = duplex(1 << 20);
        let ((near_in, near_out), (far_in, far_out)) = (split(near), split(far));
        let (dialled, accepted) = tokio::join!(dial(near_in, near_out, "it", caller), async {
            let greeted = greet(far_in, far_out).await?;
            assert_eq!(greeted.name, "it");
            greeted.accept(called).await
        });
        (dialled.unwrap(), accepted.unwrap())
    }

    #[tokio::test]
    async fn frames_arrive_whole_and_in_order_both_ways() {
        let secret = Secret::random().unwrap();
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = pair(&secret, &secret).await;
        for size in [0, 1, 1_000, 100_000] {
            near_out.write(vec![7; size]).await.unwrap();
            assert_eq!(far_in.read().await.unwrap().unwrap(), vec![7; size]);
            far_out.write(vec![8; size]).await.unwrap();
            assert_eq!(near_in.read().await.unwrap().unwrap(), vec![8; size]);
        }
        drop((near_in, near_out));
        assert!(far_in.read().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn another_secret_opens_nothing() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let ((_, mut near_out), (mut far_in, _)) = pair(&one, &other).await;
        near_out.write(b"hello".to_vec()).await.unwrap();
        assert!(matches!(far_in.read().await, Err(SealedError::Seal)));
    }

    /// What a caller wrote, as bytes, and the reader that would take it.
    async fn recorded(frames: &[&[u8]]) -> (Vec<Vec<u8>>, Direction) {
        let secret = Secret::random().unwrap();
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let mut direction = derive(&secret, b"a", b"b", b"to called");
            direction.next = at as u64;
            let mut out = SealedWriter { to: Vec::new(), direction };
            out.write(frame.to_vec()).await.unwrap();
            bytes.push(out.to);
        }
        (bytes, derive(&secret, b"a", b"b", b"to called"))
    }

    #[tokio::test]
    async fn altered_repeated_reordered_and_reflected_frames_do_not_open() {
        let (frames, direction) = recorded(&[b"one", b"two"]).await;
        let bytes = [frames[1].clone(), frames[0].clone()].concat();
        let mut reader = SealedReader { from: &bytes[..], direction };
        assert!(matches!(reader.read().await, Err(SealedError::Seal)));

        let (frames, direction) = recorded(&[b"one"]).await;
        let bytes = [frames[0].clone(), frames[0].clone()].concat();
        let mut reader = SealedReader { from: &bytes[..], direction };
        assert_eq!(reader.read().await.unwrap().unwrap(), b"one");
        assert!(matches!(reader.read().await, Err(SealedError::Seal)));

        for at in 4..frames[0].len() {
            let (frames, direction) = recorded(&[b"one"]).await;
            let mut bytes = frames[0].clone();
            bytes[at] ^= 1;
            let mut reader = SealedReader { from: &bytes[..], direction };
            assert!(matches!(reader.read().await, Err(SealedError::Seal)), "byte {at}");
        }
        // Each direction of a connection has its own key.
        let secret = Secret::random().unwrap();
        let mut out = SealedWriter { to: Vec::new(), direction: derive(&secret, b"a", b"b", b"to caller") };
        out.write(b"one".to_vec()).await.unwrap();
        let mut reader =
            SealedReader { from: &out.to[..], direction: derive(&secret, b"a", b"b", b"to called") };
        assert!(matches!(reader.read().await, Err(SealedError::Seal)));
    }

    #[tokio::test]
    async fn lengths_are_bounded_and_torn_frames_are_errors() {
        let direction = || derive(&Secret([1; 32]), b"a", b"b", b"to called");
        let mut reader = SealedReader { from: &[0xff; 8][..], direction: direction() };
        assert!(matches!(reader.read().await, Err(SealedError::Long(_))));
        let mut reader = SealedReader { from: &[100, 0, 0, 0, 1, 2][..], direction: direction() };
        assert!(matches!(reader.read().await, Err(SealedError::Io(_))));
        // Shorter than a seal.
        let mut reader = SealedReader { from: &[1, 0, 0, 0, 9][..], direction: direction() };
        assert!(matches!(reader.read().await, Err(SealedError::Seal)));
        let mut writer = SealedWriter { to: Vec::new(), direction: direction() };
        let long = writer.write(vec![0; FRAME_BYTES_MAX]).await;
        assert!(matches!(long, Err(SealedError::Long(_))));
        let foreign = greet(&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], Vec::new()).await;
        assert!(matches!(foreign, Err(SealedError::Opening)));
    }
}
