//! Samples, their medians, and the table.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What one round of a measure found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Per second.
    pub rate: f64,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
    /// Microseconds of this process's CPU time per operation.
    pub cpu: f64,
}

/// The rounds of a measure.
#[derive(Clone, Debug, Default)]
pub struct Series(pub Vec<Sample>);

impl Series {
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    pub fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(of).collect())
    }

    /// The median of the rounds' ratios.
    pub fn ratio(&self, floor: &Self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().zip(&floor.0).map(|(mine, floor)| of(mine) / of(floor)).collect())
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a ratio, or another number, should be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// It is a floor, or told for its own sake.
    None,
}

pub fn headline() {
    println!(
        "{:<44} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<9} verdict",
        "measure", "rate/s", "p50 ms", "p99 ms", "cpu us/op", "ratio", "target"
    );
}

/// One row: the medians, the ratio to its floor, and whether that is what it should be.
pub fn row(name: &str, series: &Series, ratio: Option<f64>, target: Target) {
    let number = |value: f64, decimals: usize| {
        if value.is_finite() && value > 0.0 { format!("{value:.decimals$}") } else { "-".to_owned() }
    };
    let (wanted, met) = match (target, ratio) {
        (Target::AtLeast(least), Some(ratio)) => (format!(">= {least}"), Some(ratio >= least)),
        (Target::AtMost(most), Some(ratio)) => (format!("<= {most}"), Some(ratio <= most)),
        _ => ("-".to_owned(), None),
    };
    println!(
        "{name:<44} {:>9} {:>9} {:>9} {:>9} {:>9}  {wanted:<9} {}",
        number(series.median(|s| s.rate), 0),
        number(series.median(|s| s.p50) / 1000.0, 3),
        number(series.median(|s| s.p99) / 1000.0, 3),
        number(series.median(|s| s.cpu), 1),
        ratio.map_or_else(|| "-".to_owned(), |ratio| number(ratio, 2)),
        met.map_or("", |met| if met { "met" } else { "missed" }),
    );
}

/// A row of a floor.
pub fn floor(name: &str, series: &Series) {
    row(name, series, None, Target::None);
}

/// A line of words under the rows that they are about.
pub fn note(words: &str) {
    println!("  {words}");
}

/// CPU time of a child of this process so far, all its threads, to a hundredth of a second.
fn cpu_time_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name before it may hold anything, a parenthesis too.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // Linux tells every program a hundred of them a second.
    Duration::from_millis(ticks * 10)
}

/// CPU time of this process so far, all its threads.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Wall and CPU time since some moment.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    begun: Instant,
    cpu: Duration,
    /// Whose CPU time; none means this process.
    process: Option<u32>,
}

impl Watch {
    pub fn start() -> Self {
        Self { begun: Instant::now(), cpu: cpu_time(), process: None }
    }

    /// With the CPU time of a child in place of this process's.
    pub fn of(process: u32) -> Self {
        Self { begun: Instant::now(), cpu: cpu_time_of(process), process: Some(process) }
    }

    /// Seconds of wall and of CPU time.
    pub fn stop(self) -> (f64, f64) {
        let cpu = self.process.map_or_else(cpu_time, cpu_time_of);
        (self.begun.elapsed().as_secs_f64(), (cpu - self.cpu).as_secs_f64())
    }

    pub fn sample(self, mut latencies: Vec<u32>) -> Sample {
        let (wall, cpu) = self.stop();
        let count = latencies.len() as f64;
        let (p50, p99) = quantiles(&mut latencies);
        Sample { rate: count / wall, p50, p99, cpu: cpu * 1e6 / count }
    }
}

/// The median and the 99th of a hundred.
pub fn quantiles(values: &mut [u32]) -> (f64, f64) {
    values.sort_unstable();
    let at = |part: usize| values.get(values.len() * part / 100).map_or(0.0, |value| f64::from(*value));
    (at(50), at(99))
}
