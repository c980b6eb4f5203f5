//! A build without some parts (cargo features) says so, and what to do.

use crate::support::tailcoat;

/// Exit code and standard error of a command, with this text as standard input.
fn run(arguments: &[&str], text: &str) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let input = std::fs::File::open(file.path()).unwrap();
    let output = tailcoat().args(arguments).stdin(input).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn options_and_commands_of_absent_parts_are_rejected() {
    let certificate_default = "site \"www.example.com\" { respond \"/\" 200 }\n";
    let configurations = [
        (cfg!(feature = "acme"), "no automatic certificates", certificate_default),
        (
            cfg!(feature = "acme"),
            "no automatic certificates",
            "automatic-certificates { contact \"mailto:a@example.com\" }\n",
        ),
        (cfg!(feature = "modules"), "no modules", "site { module \"*\" \"/dev/null\" }\n"),
        (cfg!(feature = "modules"), "no modules", "modules { threads 1 }\nsite { respond \"/\" 200 }\n"),
        (cfg!(feature = "traces"), "no traces", "traces { sample-ratio 1 }\nsite { respond \"/\" 200 }\n"),
    ];
    for (_, expect, text) in configurations.into_iter().filter(|(is_built, ..)| !is_built) {
        let (code, errors) = run(&["check", "-c", "-"], text);
        assert_eq!(code, Some(3), "{text}: {errors}");
        assert!(errors.contains(&format!("this build of tailcoat has {expect}")), "{text}: {errors}");
        assert!(errors.contains("--features"), "{text}: {errors}");
    }
    let commands: [(bool, &str, &[&str]); 3] = [
        (cfg!(feature = "gateway"), "no controller for Kubernetes", &["gateway", "--kubeconfig", "a"]),
        (cfg!(feature = "import"), "no translations from other servers", &["import", "--needless", "nginx.conf"]),
        (cfg!(feature = "modules"), "no modules", &["module", "check", "a.wasm"]),
    ];
    for (_, expect, arguments) in commands.into_iter().filter(|(is_built, ..)| !is_built) {
        let (code, errors) = run(arguments, "");
        assert_eq!(code, Some(2), "{arguments:?}: {errors}");
        assert!(errors.starts_with(&format!("tailcoat: this build of tailcoat has {expect}; use")), "{errors}");
    }
}
