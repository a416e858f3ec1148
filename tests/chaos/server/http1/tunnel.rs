//! A server that switches protocols: both sides send at the same time and close their direction when they are done.

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};

use super::{Next, PAUSES, break_off};
use crate::client::request::ClientRequest;
use crate::http1::{Framing, Reader};
use crate::ledger::{Ledger, VisitEnd};
use crate::server::BODY_PATIENCE;
use crate::server::behavior::{Behavior, Break, Fault};
use crate::server::check::PROTOCOL;
use crate::wire::{ANSWER, Tag};

/// Serves the exchange to the end of both directions.
pub async fn serve(
    ledger: &Ledger,
    behavior: &Behavior,
    tag: Tag,
    planned: &ClientRequest,
    answer: &[u8],
    reader: &mut Reader<ReadHalf<'_>>,
    writer: &mut WriteHalf<'_>,
) -> Next {
    reader.expect_body(Some(Framing::UntilClose));
    let both = async {
        tokio::try_join!(
            send(ledger, behavior, tag, answer, writer),
            receive(ledger, tag, planned, reader)
        )
    };
    match timeout(BODY_PATIENCE, both).await {
        Ok(Ok(_)) => {
            ledger.visited(tag, |visit| visit.end = VisitEnd::Whole);
            Next::Close
        }
        Ok(Err(next)) => next,
        Err(_) => Next::Reset,
    }
}

/// Sends the head, then the bytes of the tunnel, as the behavior says.
async fn send(
    ledger: &Ledger,
    behavior: &Behavior,
    tag: Tag,
    answer: &[u8],
    writer: &mut WriteHalf<'_>,
) -> Result<(), Next> {
    for status in &behavior.interim {
        let interim = format!("HTTP/1.1 {status} Interim\r\nx-chaos-interim: {tag}\r\n\r\n");
        write(writer, interim.as_bytes()).await?;
    }
    sleep(behavior.wait).await;
    if let Fault::NoAnswer(how) = behavior.fault {
        return Err(break_off(ledger, tag, how).await);
    }
    let head = format!(
        "HTTP/1.1 101 Chaos\r\n{ANSWER}: {tag}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n"
    );
    if let Fault::HalfHead(how) = behavior.fault {
        write(writer, &head.as_bytes()[..head.len() / 2]).await?;
        return Err(break_off(ledger, tag, how).await);
    }
    // The first bytes of the tunnel may come with the head.
    let mut bytes = head.into_bytes();
    let stop = match behavior.fault {
        Fault::Half(percent, _) => answer.len() * percent / 100,
        _ => answer.len(),
    };
    for (number, piece) in answer[..stop].chunks(behavior.width).enumerate() {
        bytes.extend(piece);
        write(writer, &std::mem::take(&mut bytes)).await?;
        if number < PAUSES && !behavior.pause.is_zero() {
            sleep(behavior.pause).await;
        }
    }
    write(writer, &bytes).await?;
    if let Fault::Half(_, how) = behavior.fault {
        // A close would look like the right end.
        let how = if how == Break::Fin { Break::Reset } else { how };
        return Err(break_off(ledger, tag, how).await);
    }
    writer.shutdown().await.map_err(|_| Next::Close)
}

async fn write(writer: &mut WriteHalf<'_>, bytes: &[u8]) -> Result<(), Next> {
    writer.write_all(bytes).await.map_err(|_| Next::Close)
}

/// Reads what the client sends, which must be what it has. A client that leaves sends less.
async fn receive(
    ledger: &Ledger,
    tag: Tag,
    planned: &ClientRequest,
    reader: &mut Reader<ReadHalf<'_>>,
) -> Result<(), Next> {
    let wanted = planned.tunnelled();
    let mut read = 0;
    while let Some(piece) = reader.piece().await.map_err(|_| Next::Close)? {
        if wanted.get(read..read + piece.len()) != Some(&piece[..]) {
            let what = format!("from byte {read} on the server gets other bytes than were sent");
            ledger.violation(Some(tag.id), what);
            return Err(Next::Close);
        }
        read += piece.len();
        ledger.visited(tag, |visit| visit.body_bytes = read);
    }
    if read == wanted.len() {
        ledger.visited(tag, |visit| visit.whole = true);
    }
    Ok(())
}
