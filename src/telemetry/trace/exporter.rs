//! The exporter of spans: OTLP over gRPC or over HTTP. It reads headers from the environment itself.

mod http;

use std::sync::{Arc, Mutex};

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{
    Compression, ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};

use self::http::Sender;
use super::protocol::Protocol;
use super::settings::{Error, TraceSettings};
use crate::tls::{ClientFiles, Files};

/// Why the last request to a collector failed. The library does not report this when it sends over HTTP.
#[derive(Clone, Debug, Default)]
pub struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    fn set(&self, failure: String) {
        if let Ok(mut last) = self.0.lock() {
            *last = Some(failure);
        }
    }

    pub fn take(&self) -> Option<String> {
        self.0.lock().ok()?.take()
    }
}

pub fn build(settings: &TraceSettings) -> Result<(SpanExporter, LastFailure), Error> {
    let failure = LastFailure::default();
    let url = settings.url()?;
    let exporter = match settings.protocol {
        Protocol::Grpc => over_grpc(settings, &url)?,
        Protocol::HttpProtobuf => over_http(settings, &url, &failure)?,
    };
    Ok((exporter.map_err(Error::Exporter)?, failure))
}

type Built = Result<SpanExporter, ExporterBuildError>;

fn over_grpc(settings: &TraceSettings, url: &str) -> Result<Built, Error> {
    let mut builder = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .with_timeout(settings.timeout);
    if settings.endpoint.is_tls() {
        builder = builder.with_tls_config(grpc_tls(&settings.tls)?);
    }
    if settings.gzip {
        builder = builder.with_compression(Compression::Gzip);
    }
    Ok(builder.build())
}

fn grpc_tls(files: &ClientFiles) -> Result<ClientTlsConfig, Error> {
    let mut tls = match &files.ca {
        None => ClientTlsConfig::new().with_native_roots(),
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem(path)?)),
    };
    if let Some((certificate, key)) = &files.identity {
        tls = tls.identity(Identity::from_pem(pem(certificate)?, pem(key)?));
    }
    Ok(tls)
}

fn pem(path: &std::path::Path) -> Result<Vec<u8>, Error> {
    Ok(crate::tls::read(path)?)
}

fn over_http(settings: &TraceSettings, url: &str, failure: &LastFailure) -> Result<Built, Error> {
    let mut builder = SpanExporter::builder()
        .with_http()
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(url)
        .with_timeout(settings.timeout);
    if settings.gzip {
        builder = builder.with_compression(Compression::Gzip);
    }
    Ok(if settings.endpoint.is_tls() {
        let client = Sender::over_tls(settings.tls.load()?, settings.timeout, failure.clone());
        builder.with_http_client(client).build()
    } else {
        let client = Sender::over_tcp(settings.timeout, failure.clone());
        builder.with_http_client(client).build()
    })
}
