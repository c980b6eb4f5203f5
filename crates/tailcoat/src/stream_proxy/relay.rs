//! Copies bytes between two connections, in both directions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, sleep_until};

use super::Counted;

/// Bytes that a direction holds, at most.
const BUFFER_BYTES: usize = 16 << 10;

/// Time of the last data in either direction.
struct LastUse {
    began: Instant,
    after_ms: AtomicU64,
}

impl LastUse {
    fn note(&self) {
        self.after_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn time(&self) -> Instant {
        self.began + Duration::from_millis(self.after_ms.load(Ordering::Relaxed))
    }
}

/// Copies until both directions have ended, one has failed, or neither has had data for this time. A side that closes
/// its sending half still receives.
pub(super) async fn relay<C, S>(client: C, server: S, idle_timeout: Duration, counted: &Counted)
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let last = LastUse { began: Instant::now(), after_ms: AtomicU64::new(0) };
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    let both = async {
        tokio::try_join!(
            copy(from_client, to_server, |length| counted.on_bytes(length, 0), &last),
            copy(from_server, to_client, |length| counted.on_bytes(0, length), &last)
        )
    };
    let idle = async {
        loop {
            let ends = last.time() + idle_timeout;
            if ends <= Instant::now() {
                return;
            }
            sleep_until(ends).await;
        }
    };
    tokio::select! {
        // An error closes both connections.
        _ = both => {}
        () = idle => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: impl Fn(u64),
    last: &LastUse,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        last.note();
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        to.flush().await?;
        count(length as u64);
        last.note();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::duplex;

    use super::*;
    use crate::metrics::StreamMetrics;

    fn counted() -> Counted {
        let metrics = Arc::new(StreamMetrics::default());
        assert!(metrics.enter(1));
        let counts = vec![metrics.backend("echo")];
        counts[0].on_open();
        Counted { metrics, counts }
    }

    #[tokio::test(start_paused = true)]
    async fn half_closed_connections_still_receive() {
        let counted = counted();
        let ((mut client, near), (mut server, far)) = (duplex(8), duplex(8));
        let ends = async {
            client.write_all(b"a long question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "a long answer");
        };
        let serves = async {
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            assert_eq!(question, "a long question");
            server.write_all(b"a long answer").await.unwrap();
            drop(server);
        };
        tokio::join!(relay(near, far, Duration::from_secs(60), &counted), ends, serves);
        let (_, report) = counted.metrics.backends().remove(0);
        assert_eq!((report.received_bytes, report.sent_bytes, report.open), (15, 13, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_and_a_busy_one_does_not() {
        let counted = counted();
        let ((mut client, near), (_server, far)) = (duplex(64), duplex(64));
        let began = Instant::now();
        let busy = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                client.write_all(b"x").await.unwrap();
            }
        };
        tokio::join!(relay(near, far, Duration::from_secs(10), &counted), busy);
        assert_eq!(began.elapsed().as_secs(), 50);
    }
}
