//! Chromium without a window, driven by the DevTools protocol over a pair of named pipes.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

/// Time that a command may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Programs that speak the protocol, the first that is installed is used.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A running browser; it ends with this.
pub(super) struct Browser {
    process: Child,
    commands: File,
    messages: Receiver<Value>,
    last_id: u64,
}

/// A page of the browser.
pub(super) struct Tab {
    session: String,
}

/// The size of a page's window, in CSS pixels.
#[derive(Clone, Copy)]
pub(super) struct Viewport {
    pub(super) width: u32,
    pub(super) height: u32,
    /// Pixels of the picture per CSS pixel.
    pub(super) scale: f64,
    pub(super) is_phone: bool,
}

/// The color scheme that a page is asked to have.
#[derive(Clone, Copy)]
pub(super) enum ColorScheme {
    Light,
    Dark,
}

impl ColorScheme {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

impl Browser {
    /// The program; none if no browser is installed.
    pub(super) fn program() -> Option<&'static str> {
        PROGRAMS.into_iter().find(|program| {
            let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            found.is_ok_and(|status| status.success())
        })
    }

    /// Starts the browser with its pipes and profile in `directory`.
    pub(super) fn start(program: &str, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let pipes: [PathBuf; 2] = ["commands", "messages"].map(|name| directory.join(name));
        if !Command::new("mkfifo").args(&pipes).status()?.success() {
            return Err("mkfifo failed".into());
        }
        // The browser reads commands from descriptor 3 and writes messages to 4.
        let script = "exec \"$@\" 3<\"$0/commands\" 4>\"$0/messages\"";
        let process = Command::new("sh")
            .args(["-c", script])
            .arg(directory)
            .args([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .args(["--font-render-hinting=none", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", directory.join("profile").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Each of these waits until the browser has opened the other end.
        let commands = File::options().write(true).open(&pipes[0])?;
        let from_browser = File::open(&pipes[1])?;
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from_browser).split(0) {
                let Ok(message) = message.map_err(drop).and_then(|bytes| serde_json::from_slice(&bytes).map_err(drop))
                else {
                    return;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, commands, messages, last_id: 0 })
    }

    /// Opens a page and waits until it is loaded. Its timers run `hurry` times faster.
    pub(super) fn open(
        &mut self,
        url: &str,
        viewport: Viewport,
        scheme: ColorScheme,
        hurry: u32,
    ) -> Result<Tab, Box<dyn Error>> {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.call(None, "Target.attachToTarget", attach)?;
        let session = attached["sessionId"].as_str().ok_or("the browser attached no session")?.to_owned();
        let tab = Tab { session };
        self.show(&tab, viewport, scheme)?;
        self.call(Some(&tab), "Page.enable", json!({}))?;
        let script = format!(
            "for (const name of ['setTimeout', 'setInterval']) {{ const timer = window[name]; \
             window[name] = (call, wait, ...rest) => timer(call, wait / {hurry}, ...rest); }}"
        );
        self.call(Some(&tab), "Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }))?;
        let navigated = self.call(Some(&tab), "Page.navigate", json!({ "url": url }))?;
        if let Some(error) = navigated["errorText"].as_str() {
            return Err(format!("{url}: {error}").into());
        }
        self.wait_for(|message| {
            message["method"] == "Page.loadEventFired" && message["sessionId"] == tab.session.as_str()
        })?;
        Ok(tab)
    }

    /// Gives a page another size and color scheme.
    pub(super) fn show(&mut self, tab: &Tab, viewport: Viewport, scheme: ColorScheme) -> Result<(), Box<dyn Error>> {
        let Viewport { width, height, scale, is_phone } = viewport;
        // The browser draws only the page in front.
        self.call(Some(tab), "Page.bringToFront", json!({}))?;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone });
        self.call(Some(tab), "Emulation.setDeviceMetricsOverride", metrics)?;
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme.name() });
        self.call(Some(tab), "Emulation.setEmulatedMedia", json!({ "features": [feature] }))?;
        Ok(())
    }

    /// The value of an expression in a page.
    pub(super) fn evaluate(&mut self, tab: &Tab, expression: &str) -> Result<Value, Box<dyn Error>> {
        let argument = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.call(Some(tab), "Runtime.evaluate", argument)?;
        if let Some(exception) = result.get("exceptionDetails") {
            return Err(format!("{expression}: {exception}").into());
        }
        Ok(result["result"]["value"].take())
    }

    /// A PNG of a page's window; `height` in CSS pixels from the top.
    pub(super) fn capture(&mut self, tab: &Tab, width: u32, height: u32) -> Result<Vec<u8>, Box<dyn Error>> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let argument = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
        let result = self.call(Some(tab), "Page.captureScreenshot", argument)?;
        let data = result["data"].as_str().ok_or("the browser sent no picture")?;
        Ok(Base64::decode_vec(data).map_err(|error| format!("picture: {error}"))?)
    }

    /// Sends a command and returns its result.
    fn call(&mut self, tab: Option<&Tab>, method: &str, parameters: Value) -> Result<Value, Box<dyn Error>> {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if let Some(tab) = tab {
            command["sessionId"] = tab.session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes)?;
        let mut message = self.wait_for(|message| message["id"] == id).map_err(|error| format!("{method}: {error}"))?;
        match message.get("error") {
            Some(error) => Err(format!("{method}: {error}").into()),
            None => Ok(message["result"].take()),
        }
    }

    /// The next message that is wanted; others are dropped.
    fn wait_for(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Result<Value, Box<dyn Error>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) if is_wanted(&message) => return Ok(message),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err("the browser does not answer".into()),
                Err(RecvTimeoutError::Disconnected) => return Err("the browser has ended".into()),
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser may have ended by itself.
        let _ = self.call(None, "Browser.close", json!({}));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
