//! Back ends that note each request they see: `PORT METHOD TARGET` in the file `seen`, and `METHOD TARGET` in X-Saw.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::real_server::{RealServer, Recipe, is_installed};
use crate::trial::Skipped;

const APACHE: Recipe<'_> = Recipe {
    needs: &["apache2"],
    files: &[
        (
            "apache.conf",
            "ServerRoot /usr/lib/apache2\nPidFile @DIR@/pid\nDefaultRuntimeDir @DIR@\nServerName localhost\n\
             Listen 127.0.0.1:@PORT@\nErrorLog @DIR@/errors\nLogLevel crit\nMutex pthread\nDocumentRoot @DIR@/root\n\
             LoadModule mpm_event_module modules/mod_mpm_event.so\nLoadModule authz_core_module modules/mod_authz_core.so\n\
             LoadModule headers_module modules/mod_headers.so\nThreadsPerChild 64\nMaxRequestWorkers 128\n\
             MaxKeepAliveRequests 0\nLogFormat \"%{remote}p %r\" seen\nCustomLog @DIR@/seen seen\n\
             Header always set X-Saw \"expr=%{THE_REQUEST}\"\n<Directory @DIR@/root>\nRequire all granted\n</Directory>\n",
        ),
        ("root/index.html", "ok"),
    ],
    command: &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
    environment: &[],
};

const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[(
        "nginx.conf",
        "daemon off;\nworker_processes 1;\npid @DIR@/pid;\nerror_log @DIR@/errors crit;\nevents { worker_connections 1024; }\n\
         http {\n log_format seen '$remote_port $request';\n access_log @DIR@/seen seen;\n\
         client_body_temp_path @DIR@/body;\n proxy_temp_path @DIR@/proxy;\n fastcgi_temp_path @DIR@/fastcgi;\n\
         uwsgi_temp_path @DIR@/uwsgi;\n scgi_temp_path @DIR@/scgi;\n keepalive_requests 1000000;\n\
         server {\n listen 127.0.0.1:@PORT@ backlog=1024;\n add_header X-Saw \"$request_method $request_uri\" always;\n\
         location / { return 200 ok; }\n }\n}\n",
    )],
    command: &["nginx", "-c", "@DIR@/nginx.conf", "-e", "@DIR@/errors"],
    environment: &[],
};

const NODE: Recipe<'_> = Recipe {
    needs: &["node"],
    files: &[("echo.js", include_str!("../back_ends/echo.js"))],
    command: &["node", "@DIR@/echo.js", "@PORT@", "@DIR@/seen"],
    environment: &[],
};

/// Starts a back end by name.
pub(super) fn start(name: &str) -> Result<RealServer, Skipped> {
    let go;
    let (arguments, recipe);
    let recipe = match name {
        "apache" => &APACHE,
        "nginx" => &NGINX,
        "node" => &NODE,
        _ => {
            go = build_go(include_str!("../back_ends/echo.go"), "echo")?;
            arguments = [&*go, "@PORT@", "@DIR@/seen"];
            recipe = Recipe { command: &arguments, ..Recipe::default() };
            &recipe
        }
    };
    if let Some(missing) = recipe.needs.iter().find(|name| !is_installed(name)) {
        return Err(Skipped::missing(missing));
    }
    RealServer::start(recipe).ok_or_else(|| Skipped(format!("{name} does not start")))
}

/// Compiles a Go program with nothing but the standard library, unless that was done before; returns its path.
pub(crate) fn build_go(source: &str, name: &str) -> Result<String, Skipped> {
    if !is_installed("go") {
        return Err(Skipped::missing("go"));
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attacks");
    let (file, program): (PathBuf, PathBuf) = (directory.join(format!("{name}.go")), directory.join(name));
    std::fs::create_dir_all(&directory).map_err(|error| Skipped(format!("cannot create {directory:?}: {error}")))?;
    if !program.exists() || std::fs::read_to_string(&file).is_ok_and(|built| built != source) {
        let _ = std::fs::remove_file(&program);
        std::fs::write(&file, source).map_err(|error| Skipped(format!("cannot write {file:?}: {error}")))?;
        let built =
            Command::new("go").arg("build").arg("-o").arg(&program).arg(&file).env("GO111MODULE", "off").output();
        let built = built.map_err(|error| Skipped(format!("cannot start go: {error}")))?;
        if !built.status.success() {
            return Err(Skipped(format!("go does not compile it: {}", String::from_utf8_lossy(&built.stderr))));
        }
    }
    Ok(program.display().to_string())
}
