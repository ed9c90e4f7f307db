//! A compromised agent: what it asks the privileged helper for, over the socket that only the
//! agent's user reaches.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use edgesync_files::wire::{Listed, Outcome, Reply, Request, Verb};
use edgesync_testkit::programs;
use edgesync_testkit::site::{PATIENCE, Process, Site, eventually};

/// A running helper with one rule, and the directory of its files.
struct Helper {
    // Ends before the directory that it uses goes.
    _process: Process,
    site: Site,
}

impl Helper {
    async fn start() -> Self {
        let site = Site::new();
        let (config, socket) = (site.path("edgesync.toml"), site.path("files.sock"));
        let text = format!(
            "[node]\nname = \"edge-1\"\n[link]\nbroker = \"mqtt://localhost\"\n\
             [helper]\nsocket = {socket:?}\nstate = {:?}\n\
             [[files]]\nname = \"units\"\nto = \"{}/{{metadata.name}}.d\"\n\
             objects = {{ kinds = [\"configmaps\"], namespaces = [\"plant\"], names = [\"web\", \"api\"], \
             selector = \"app=web\" }}\n",
            site.path("state"),
            site.path("out").display()
        );
        fs::write(&config, text).unwrap();
        fs::create_dir(site.path("out")).unwrap();
        let program = Path::new(programs::device());
        let words =
            vec!["files-helper".into(), "--config".into(), config.into(), "--socket".into(), socket.into()];
        let mut process = Process::with_arguments("the helper", program, words);
        process.start();
        let helper = Self { _process: process, site };
        eventually("the helper listens", PATIENCE, async || UnixStream::connect(helper.socket()).ok()).await;
        helper
    }

    fn socket(&self) -> PathBuf {
        self.site.path("files.sock")
    }

    /// Requests the files of a rule for a list of objects, and sends `body` for each requested
    /// object. Returns the answer.
    fn request(&self, rule: &str, list: &Value, body: &Value) -> Reply {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = Request { verb: Verb::Apply, rule: rule.to_owned(), force: true, ..Request::default() };
        let list = list.to_string();
        send(&mut stream, list.as_bytes());
        send(&mut stream, &[]);
        send(&mut stream, &serde_json::to_vec(&request).unwrap());
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut frame = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut frame).unwrap();
            match serde_json::from_slice(&frame).unwrap() {
                Reply::Want(members) => {
                    members.iter().for_each(|_| send(&mut stream, body.to_string().as_bytes()));
                }
                Reply::Whole => {
                    send(&mut stream, list.as_bytes());
                    send(&mut stream, &[]);
                }
                reply => return reply,
            }
        }
    }

    /// Requests the files of an object, which the helper must examine.
    fn apply(&self, object: &Value) -> Outcome {
        match self.request("units", &json!([listed(object)]), object) {
            Reply::Done(outcome) => *outcome,
            other => panic!("{object}: {other:?}"),
        }
    }

    /// Returns the names of the written files.
    fn written(&self) -> Vec<String> {
        let entries = fs::read_dir(self.site.path("out")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn send(stream: &mut UnixStream, frame: &[u8]) {
    stream.write_all(&u32::try_from(frame.len()).unwrap().to_le_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

/// Returns the object that the rule selects, with one field set to another value.
fn object(field: &str, value: &str) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "web", "namespace": "plant", "uid": "u", "resourceVersion": "1", "labels": {"app": "web"},
        },
        "data": {"unit": "ExecStart=/bin/true"},
    });
    if !field.is_empty() {
        *object.pointer_mut(field).unwrap() = value.into();
    }
    object
}

/// Returns the line of an object in a list.
fn listed(object: &Value) -> Value {
    let text = |pointer: &str| object.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let listed = Listed {
        uid: text("/metadata/uid"),
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        version: text("/metadata/resourceVersion"),
        ..Listed::default()
    };
    serde_json::to_value(listed).unwrap()
}

#[tokio::test]
async fn compromised_agent_gets_only_the_files_of_rules() {
    let helper = Helper::start().await;
    // Objects that the rule does not select.
    for (field, value) in [
        ("/kind", "Secret"),
        ("/metadata/namespace", "kube-system"),
        ("/metadata/name", "sshd"),
        ("/metadata/labels/app", "other"),
    ] {
        let outcome = helper.apply(&object(field, value));
        let message = &outcome.updates[0].status.message;
        assert!(message.contains("objects of the rule"), "{field}: {message}");
        assert_eq!(helper.written(), [""; 0], "{field}");
    }
    // A list that names the selected object, and the body of another one.
    for (field, value) in [
        ("/kind", "Secret"),
        ("/metadata/namespace", "../.."),
        ("/metadata/name", "api"),
        ("/metadata/labels/app", "other"),
    ] {
        let reply = helper.request("units", &json!([listed(&object("", ""))]), &object(field, value));
        let Reply::Done(outcome) = reply else { panic!("{field}: {reply:?}") };
        let rule = &outcome.rules[0];
        assert_eq!((rule.in_effect, rule.not_in_effect, helper.written()), (0, 1, vec![]), "{field}");
    }
    // Names that would be words of a command, patterns or paths.
    let words = ["a b", "*", "$(touch out/x)", "`id`", "../../etc/cron.d/x", "a\nb", "a;b", "", "-x y"];
    for field in ["uid", "api_version", "kind", "plural", "namespace", "name"] {
        for word in words.iter().filter(|word| !word.is_empty() || field == "uid" || field == "name") {
            let mut list = json!([listed(&object("", ""))]);
            list[0][field] = (*word).into();
            let reply = helper.request("units", &list, &object("", ""));
            assert!(matches!(&reply, Reply::Refused(_)), "{field} {word:?}: {reply:?}");
        }
    }
    for rule in ["", "other", "../units", "units\0"] {
        let reply = helper.request(rule, &json!([listed(&object("", ""))]), &object("", ""));
        assert!(matches!(&reply, Reply::Refused(_)), "{rule:?}: {reply:?}");
    }
    assert_eq!(helper.written(), [""; 0]);
    // The object that the rule selects.
    assert_eq!(helper.apply(&object("", "")).rules[0].in_effect, 1);
    assert_eq!(helper.written(), ["web.d"]);
    assert_eq!(fs::read_to_string(helper.site.path("out/web.d/unit")).unwrap(), "ExecStart=/bin/true");
}
