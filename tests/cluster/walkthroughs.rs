//! Runs the code blocks of the documented walkthroughs in a user's shell in a cluster. No stream of a continuous load may fail.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::charts::{bare, clear};
use crate::cluster::Cluster;
use crate::fixture::{answers, copied, eventually};
use crate::load::{Load, assert_none_failed, share};
use crate::operator::Operator;
use crate::rollout::SHAPE;

const STREAMS: usize = 20;
const INSTALL: &str = include_str!("../../docs/install.md");

/// Something that a page asks its reader to do.
enum Step<'a> {
    Writes { file: &'a str, text: &'a str },
    Runs { commands: &'a str },
}

/// The steps of the section with this heading. A YAML block whose first line names a file is written to that file, an `sh` block is
/// run, and any other block is ignored.
fn steps<'a>(page: &'a str, heading: &str) -> Vec<Step<'a>> {
    let heading = format!("\n## {heading}\n");
    let (_, section) = page
        .split_once(&*heading)
        .unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let mut steps = Vec::new();
    for fenced in section.split("\n```").skip(1).step_by(2) {
        let (language, text) = fenced.split_once('\n').unwrap();
        let file = text.lines().next().and_then(|line| line.strip_prefix("# "));
        match (language, file) {
            ("yaml", Some(file)) => steps.push(Step::Writes { file, text }),
            ("sh", _) => steps.push(Step::Runs { commands: text }),
            _ => {}
        }
    }
    assert!(!steps.is_empty(), "{heading} has nothing to do");
    steps
}

/// The fields of a pod that have crossfade and its status: as a native sidecar, or as a plain container.
type Fields = [&'static str; 2];

const NATIVE: Fields = ["initContainers", "initContainerStatuses"];
const PLAIN: Fields = ["containers", "containerStatuses"];

/// A reader with this repository in `crossfade`, the programs on the PATH, and a namespace.
struct Reader {
    cluster: Cluster,
    namespace: &'static str,
    directory: TempDir,
    page: String,
    done: Vec<String>,
}

impl Reader {
    /// `None` in an existing cluster, which does not have the images.
    async fn of(page: &str, namespace: &'static str) -> Option<Self> {
        let cluster = Cluster::around();
        let Some(kubeconfig) = cluster.kubeconfig().filter(|_| cluster.is_own()) else {
            println!(
                "skipped: {namespace}: this cluster does not have the images of the fake servers"
            );
            return None;
        };
        let directory = copied(&[kubeconfig]);
        let here = directory.path();
        fs::rename(here.join("admin.kubeconfig"), here.join("kubeconfig"))
            .expect("the temporary directory is writable");
        fs::create_dir_all(here.join("crossfade")).expect("the temporary directory is writable");
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(deploy).arg(here.join("crossfade"));
        assert!(copy.status().expect("cp starts").success());
        fs::create_dir(here.join("bin")).expect("the temporary directory is writable");
        let link = |program: &Path, name: &str| {
            std::os::unix::fs::symlink(program, here.join("bin").join(name))
                .expect("the temporary directory is writable");
        };
        link(&crate::program(), "crossfade");
        link(&crate::program(), "kubectl-crossfade");
        link(
            &crate::helm::program().expect("run tests/tools/install.sh"),
            "helm",
        );
        fs::write(here.join("environment"), "").expect("the temporary directory is writable");
        let reader = Self {
            cluster,
            namespace,
            directory,
            page: page.to_owned(),
            done: Vec::new(),
        };
        bare(&reader.cluster).await;
        reader.runs(&format!(
            "kubectl create namespace {namespace}\nkubectl config set-context --current --namespace={namespace}"
        ));
        for step in steps(INSTALL, "Once per cluster") {
            reader.does(&step);
        }
        Some(reader)
    }

    /// Runs commands as in one shell that stays open: exported variables persist.
    fn runs(&self, commands: &str) {
        let here = self.directory.path();
        let block = here.join("block");
        fs::write(&block, commands).expect("the temporary directory is writable");
        let mut shell = Command::new("bash");
        shell.args([
            "-euo",
            "pipefail",
            "-c",
            ". ./environment; set -x; . ./block; { set +x; } 2>/dev/null; export -p >environment",
        ]);
        let own = self.cluster.command();
        let kubectl = Path::new(own.get_program())
            .parent()
            .expect("its directory")
            .to_owned();
        let path = std::env::var("PATH").expect("a PATH");
        let path = format!(
            "{}:{}:{path}",
            here.join("bin").display(),
            kubectl.display()
        );
        shell.current_dir(here).env("PATH", path);
        shell.env("KUBECONFIG", here.join("kubeconfig"));
        for place in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            shell.env(place, here.join("home"));
        }
        let status = shell.status().expect("bash starts");
        if !status.success() {
            for what in ["pods", "duc", "events"] {
                let args = ["-n", self.namespace, "describe", what];
                println!(
                    "{}",
                    String::from_utf8_lossy(&self.cluster.try_kubectl(&args, "").stdout)
                );
            }
            panic!("{status}:\n{commands}");
        }
    }

    fn does(&self, step: &Step) {
        match step {
            Step::Writes { file, text } => {
                fs::write(self.directory.path().join(file), text)
                    .expect("the temporary directory is writable");
            }
            Step::Runs { commands } => self.runs(commands),
        }
    }

    /// Follows the steps of a section of the page.
    fn follows(&mut self, heading: &str) {
        self.follows_and(heading, |_| {});
    }

    /// Like [`Self::follows`], and does something before each step.
    fn follows_and(&mut self, heading: &str, before: impl Fn(&Step)) {
        println!("## {heading}");
        for step in steps(&self.page, heading) {
            before(&step);
            self.does(&step);
        }
        self.done.push(heading.to_owned());
    }

    /// Where clients of a Service connect.
    fn address(&self, service: &str) -> SocketAddr {
        let service = self
            .cluster
            .get(&["service", service, "-n", self.namespace]);
        let ip = service["spec"]["clusterIP"].as_str().expect("an address");
        format!("{ip}:8000").parse().expect("an address")
    }

    /// Starts clients of a Service, once the nodes route it.
    async fn load(&self, service: &str) -> Load {
        let address = self.address(service);
        eventually("the Service has an endpoint", async || {
            answers(address, "/v1/models").await
        })
        .await;
        Load::start_half_kept(address, STREAMS, SHAPE)
    }

    fn pods(&self, label: &str) -> Vec<Value> {
        let pods = self
            .cluster
            .get(&["pods", "-n", self.namespace, "-l", label]);
        pods["items"].as_array().expect("a list").clone()
    }

    /// Follows all sections that involve crossfade, under load.
    async fn updates(&mut self, load: Load) {
        for (phase, heading) in ["Add crossfade", "Start the next version", "Update"]
            .iter()
            .enumerate()
        {
            load.enter_phase(phase);
            // The page asks its reader to restart clients that keep their connections before the first pods are deleted.
            self.follows_and(heading, |step| match step {
                Step::Runs { commands } if commands.starts_with("sleep") => load.restart_kept(),
                _ => {}
            });
        }
        load.wait_for_started(4 * STREAMS).await;
        load.enter_phase(3);
        self.follows("Finish");
        load.enter_phase(4);
        load.wait_for_started(4 * STREAMS).await;
        let on_kept = load.on_kept();
        let ended = load.finish();
        assert_none_failed(&ended);
        println!(
            "{} streams, {on_kept} of them on kept connections, none failed or cut",
            ended.len()
        );
        assert!(on_kept > STREAMS, "clients did not keep their connections");
        for phase in [0, 1] {
            assert_eq!(
                share(&ended, phase).1,
                0,
                "new got requests before the update"
            );
        }
        let (_, new) = share(&ended, 2);
        assert!(new > 0, "new got no requests in the update");
        let (all, new) = share(&ended, 4);
        assert_eq!(all, new, "clients only reach new");
    }

    /// Asserts that all sections were followed, and that the pods of the last generation can be the old ones of the next update.
    async fn leaves(self, frontends: &str, [containers, statuses]: Fields) {
        let headings = self.page.split("\n## ").skip(1);
        let headings: Vec<_> = headings.map(|part| part.lines().next().unwrap()).collect();
        assert_eq!(
            self.done, headings,
            "a section of the page was not followed"
        );
        let pods = self.pods(frontends);
        assert!(!pods.is_empty(), "no pod matches {frontends}");
        for pod in &pods {
            let is_there = |list: &Value| {
                let mut list = list.as_array().into_iter().flatten();
                list.any(|container| container["name"] == "crossfade")
            };
            assert!(is_there(&pod["spec"][containers]), "{pod}");
            let statuses = pod["status"][statuses].as_array().expect("a list");
            let crossfade = statuses.iter().find(|status| status["name"] == "crossfade");
            assert_eq!(crossfade.expect("its status")["restartCount"], 0, "{pod}");
        }
        clear(&self.cluster, self.namespace).await;
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_walkthrough_of_vllm_loses_no_stream() {
    let page = include_str!("../../docs/walkthroughs/vllm.md");
    let Some(mut reader) = Reader::of(page, "walk-vllm").await else {
        return;
    };
    reader.follows("What you have");
    let load = reader.load("vllm").await;
    reader.updates(load).await;
    reader.leaves("app=vllm-v2", NATIVE).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_walkthrough_of_vllm_with_plain_containers_loses_no_stream() {
    let page = include_str!("../../docs/walkthroughs/vllm.md");
    let page = page.replace("crossfade inject ", "crossfade inject --plain-container ");
    let Some(mut reader) = Reader::of(&page, "walk-plain").await else {
        return;
    };
    reader.follows("What you have");
    let load = reader.load("vllm").await;
    reader.updates(load).await;
    reader.leaves("app=vllm-v2", PLAIN).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_walkthrough_of_dynamo_in_plain_deployments_loses_no_stream() {
    let page = include_str!("../../docs/walkthroughs/dynamo-deployments.md");
    let Some(mut reader) = Reader::of(page, "walk-dynamo").await else {
        return;
    };
    reader.follows("What you have");
    let load = reader.load("frontend").await;
    reader.updates(load).await;
    reader.leaves("app=frontend-v2", NATIVE).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_walkthrough_of_graphs_loses_no_stream() {
    let page = include_str!("../../docs/walkthroughs/dynamo-graphs.md");
    let Some(mut reader) = Reader::of(page, "walk-graphs").await else {
        return;
    };
    let operator = Operator::of(reader.namespace);
    reader.follows("What you have");
    // Clients move one by one from the operator's Service to their own.
    let early = reader.load("chat-1-frontend").await;
    reader.follows("A Service that outlives the graphs");
    let load = reader.load("chat").await;
    load.wait_for_started(2 * STREAMS).await;
    assert_none_failed(&early.finish());
    reader.updates(load).await;
    drop(operator);
    reader.leaves(
        "nvidia.com/dynamo-graph-deployment-name=chat-3,nvidia.com/dynamo-component-type=frontend",
        NATIVE,
    ).await;
}
