//! A pseudo-terminal for a program: records what the program draws, and can type.
//!
//! Does not depend on the program.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use super::rig::until;

/// The start of each picture.
const AFRESH: &str = "\x1b[H\x1b[J";

/// A program on its own terminal. Killed when dropped.
pub struct Terminal {
    child: Child,
    master: File,
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a program on a terminal of this size.
    pub fn run(command: &mut Command, columns: u16, rows: u16) -> Self {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: both pointers are valid for writes, and the size is only read.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: they were just opened and have no other owner.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        command
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave);
        // Most tests are easier to read without colours. An empty value enables them.
        if command.get_envs().all(|(name, _)| name != "NO_COLOR") {
            command.env("NO_COLOR", "1");
        }
        // SAFETY: only calls that are safe between fork and exec. They make the terminal the program's controlling terminal.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // A shell lets what it runs in the background ignore Ctrl-C, and so would this.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // Drop the copies of the program's side. Otherwise its end would not be noticed.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let mut reader = master.try_clone().unwrap();
        let all = Arc::clone(&drawn);
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // Reading fails once the program's side is closed.
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                all.lock().unwrap().extend(&chunk[..count]);
            }
        });
        Self {
            child,
            master,
            drawn,
        }
    }

    /// Everything that was drawn, with LF line ends.
    pub fn all(&self) -> String {
        let drawn = self.drawn.lock().unwrap();
        String::from_utf8_lossy(&drawn).replace("\r\n", "\n")
    }

    /// The last complete picture, or all output if the program does not draw pictures.
    pub fn picture(&self) -> String {
        let all = self.all();
        let mut pictures = all.rsplit(AFRESH);
        let last = pictures.next().unwrap_or_default();
        pictures.next().unwrap_or(last).to_owned()
    }

    /// Waits until the picture contains all of `parts`.
    pub async fn shows(&self, parts: &[&str]) -> String {
        until(&format!("{parts:?} on the terminal"), async || {
            let picture = self.picture();
            parts
                .iter()
                .all(|part| picture.contains(part))
                .then_some(picture)
        })
        .await
    }

    /// Types `keys`.
    pub fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the program to end. Returns its exit status and everything that it drew.
    pub async fn end(mut self) -> (ExitStatus, String) {
        let status = until("the program ends", async || self.child.try_wait().unwrap()).await;
        until("all is read", async || {
            (Arc::strong_count(&self.drawn) == 1).then_some(())
        })
        .await;
        (status, self.all())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
