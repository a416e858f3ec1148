//! A relay in front of a server, whose connections can be reset.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Relay {
    address: SocketAddr,
    is_up: watch::Sender<bool>,
}

impl Relay {
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (is_up, watched) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, server, watched.clone()));
            }
        });
        Self { address, is_up }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Resets all connections, including future ones.
    pub fn reset(&self) {
        self.is_up.send_replace(false);
    }
}

async fn relay(mut client: TcpStream, server: SocketAddr, mut is_up: watch::Receiver<bool>) {
    let relayed = async {
        let mut server = TcpStream::connect(server).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    tokio::select! {
        _ = relayed => return,
        _ = is_up.wait_for(|is_up| !is_up) => {}
    }
    let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
}
