//! Requests of different clients share a connection to an HTTP/2 model server. None of them may break the others, or open
//! connections for nothing.

use crate::rig::frames::*;
use crate::rig::*;

const OK: (&str, &str) = (":status", "200");

async fn before_frames(server: &FrameServer) -> Proxy {
    // Each thread has its own connections.
    let flags = ["--upstream-protocol", "http2", "--threads", "1"];
    Proxy::before_url(&server.url(), &flags).await
}

#[tokio::test]
async fn simultaneous_uploads_share_a_connection() {
    let server = FrameServer::answering(
        &[(MAX_CONCURRENT_STREAMS, 100)],
        |mut frames, stream| async move {
            frames.headers(stream, END_STREAM, &[OK]).await;
            frames
        },
    )
    .await;
    let proxy = before_frames(&server).await;
    // From now on there is a connection whose server has announced its limit of streams.
    let first = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(first.status, 200);
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.push(Client::connect(proxy.address).await);
    }
    for client in &mut clients {
        client.post(CHAT, &[], UNARY).await;
    }
    for client in &mut clients {
        assert_eq!(client.head().await.status, 200);
    }
    assert_eq!(server.connections(), 1);
}
