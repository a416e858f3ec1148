//! The arguments of `crossfade status`.

use clap::Args;

use super::connection::Connection;
use super::display::Display;
use super::parse::kubernetes_name;
use crate::app::commands::StatusOptions;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The update [default: the only one in the namespace; if there are several, all are listed]
    #[arg(value_parser = kubernetes_name)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) connection: Connection,
    #[command(flatten)]
    display: Display,
}

impl StatusArgs {
    /// The options.
    #[must_use]
    pub fn options(self) -> StatusOptions {
        let (proxies, cluster) = self.connection.parts();
        StatusOptions {
            name: self.name,
            proxies,
            cluster,
            every: self.display.every(),
            form: self.display.output,
        }
    }
}
