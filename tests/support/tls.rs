//! Certificates for tests, and TLS configurations that use them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate authority, with a directory for its files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Files {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Files {
    pub fn cert(&self) -> &str {
        self.cert.to_str().unwrap()
    }

    pub fn key(&self) -> &str {
        self.key.to_str().unwrap()
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(&self.cert)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).unwrap()
    }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// The path of its own certificate.
    pub fn file(&self) -> String {
        let path = self.directory.path().join("ca.pem");
        path.to_str().unwrap().to_owned()
    }

    /// Issues a certificate for `localhost` and `127.0.0.1` to files of this name. Issuing it again replaces them.
    pub fn issue(&self, name: &str) -> Files {
        self.issue_for(name, &["localhost", "127.0.0.1"])
    }

    /// Like [`Self::issue`], for these hosts.
    pub fn issue_for(&self, name: &str, hosts: &[&str]) -> Files {
        let names: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(fastrand::u64(1..u64::MAX >> 1).into());
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let file = |suffix: &str| self.directory.path().join(format!("{name}.{suffix}"));
        let files = Files {
            cert: file("pem"),
            key: file("key"),
        };
        put(&files.key, &key.serialize_pem());
        put(&files.cert, &cert.pem());
        files
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A server with this certificate and these ALPN protocols. If `mutual`, it requires client certificates of this authority.
    pub fn server(&self, files: &Files, alpn: &[&str], mutual: bool) -> Arc<ServerConfig> {
        provide();
        let builder = ServerConfig::builder();
        let builder = if mutual {
            let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder
            .with_single_cert(files.chain(), files.private_key())
            .unwrap();
        config.alpn_protocols = protocols(alpn);
        Arc::new(config)
    }

    /// A client that trusts this authority and presents `own`, if given.
    pub fn client(&self, alpn: &[&str], own: Option<&Files>) -> Arc<ClientConfig> {
        provide();
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(files) => builder
                .with_client_auth_cert(files.chain(), files.private_key())
                .unwrap(),
        };
        config.alpn_protocols = protocols(alpn);
        Arc::new(config)
    }
}

/// Makes a connection.
///
/// # Errors
/// Why the handshake failed. Beware: with TLS 1.3 a rejected client may notice only when it reads.
pub async fn connect(
    address: std::net::SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    over(stream, config).await
}

pub async fn over(
    stream: TcpStream,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, stream).await
}

fn protocols(alpn: &[&str]) -> Vec<Vec<u8>> {
    alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
}

fn provide() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Replaces a file atomically, as tools that renew certificates do.
fn put(path: &Path, text: &str) {
    let other = path.with_extension("tmp");
    std::fs::write(&other, text).unwrap();
    std::fs::rename(other, path).unwrap();
}
