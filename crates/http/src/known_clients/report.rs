use bots::score::{BotAction, BotClass, BotSignals};

/// Assessment of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotReport {
    /// Class, for logs and metrics.
    pub class: BotClass,
    /// Sum of the points.
    pub score: i16,
    /// BotSignals that have given points.
    pub signals: BotSignals,
    /// Crawler that the client claims to be, or agent that has signed the request.
    pub name: Option<Box<str>>,
    /// Decision, unless this is a dry run.
    pub action: BotAction,
}

impl BotReport {
    /// Names of the signals, separated by commas.
    pub fn signal_names(&self) -> String {
        self.signals.names().collect::<Vec<_>>().join(",")
    }
}
