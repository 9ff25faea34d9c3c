//! `seckill reconcile`: the reconciler as a role, as one run by hand, or as a dry run that changes nothing.

use anyhow::ensure;
use clap::Args;

use super::out;
use crate::app::{self, Roles};
use crate::config::Settings;
use crate::domain::{Sale, SaleId, SaleState};
use crate::reconcile::{Job, JobStats, Reconciler};

#[derive(Debug, Args)]
pub struct Reconcile {
    /// Inspects each sale once, repairs it, says what was done, and ends.
    #[arg(long)]
    once: bool,
    /// As --once, and writes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only this sale, with --once or --dry-run.
    #[arg(long, value_name = "ID")]
    sale: Option<SaleId>,
}

impl Reconcile {
    /// # Errors
    /// When a server does not answer, a run does not end, or the sale does not exist.
    pub async fn run(self, settings: Settings) -> anyhow::Result<()> {
        if !self.once && !self.dry_run {
            ensure!(self.sale.is_none(), "--sale goes with --once or --dry-run");
            return app::run(settings, Roles::RECONCILE).await;
        }
        let (catalogue, reconciler) = app::reconciler(&settings).await?;
        let chosen = |sale: &&Sale| self.sale.is_none_or(|id| id == sale.id);
        let all = catalogue.all();
        let sales: Vec<_> = all.iter().map(AsRef::as_ref).filter(chosen).collect();
        ensure!(self.sale.is_none() || !sales.is_empty(), "no such sale");
        out::line(format_args!("{:>6}  {:<10} {:>9} {:>9} {:>9}", "sale", "job", "checked", "found", "repaired"));
        let mut failed = 0;
        let mut left: Vec<_> = sales.into_iter().filter(|sale| sale.state != SaleState::Draft).collect();
        // One that had to catch up with Redis is rebuilt when all have: their orders wait in Kafka one behind the other.
        while !left.is_empty() {
            let mut again = Vec::new();
            for sale in left {
                match self.run_on(&reconciler, sale).await {
                    Ok(stats) => {
                        print(sale.id, &stats);
                        again.extend((stats.of(Job::CatchUp).repaired > 0).then_some(sale));
                    }
                    Err(error) => {
                        failed += 1;
                        out::line(format_args!("{:>6}  {error:#}", sale.id));
                    }
                }
            }
            left = again;
        }
        ensure!(failed == 0, "{failed} sales could not be inspected to the end");
        Ok(())
    }

    async fn run_on(&self, reconciler: &Reconciler, sale: &Sale) -> anyhow::Result<JobStats> {
        if self.dry_run {
            return Ok(reconciler.inspect(sale, true).await?.stats());
        }
        Ok(reconciler.run_once(sale, true).await?)
    }
}

fn print(sale: SaleId, stats: &JobStats) {
    for (job, counts) in &stats.0 {
        let job = job.as_str();
        out::line(format_args!(
            "{sale:>6}  {job:<10} {:>9} {:>9} {:>9}",
            counts.checked, counts.found, counts.repaired
        ));
    }
}
